// The plug-in tandem_mpi.so: moves bytes between ranks with MPI. Only moves them, so no result
// depends on the algorithms that MPI chooses. All calls come from one thread.

#include <mpi.h>
#include <time.h>

#include <cstdio>

#include "training/dist/mpi/tandem_mpi_abi.h"

namespace {

constexpr int kNotEnoughThreads = -1;
constexpr int kTooManyGroups = -2;
constexpr int kMostGroups = 16;
constexpr int kSpins = 2000;          // tests of a request before the thread sleeps
constexpr long kSleepNs = 50 * 1000;  // a blocking call would take a whole core while it waits

MPI_Comm groups[kMostGroups] = {MPI_COMM_WORLD};
int n_groups = 1;

int Complete(int code, MPI_Request* request) {
  if (code != MPI_SUCCESS) return code;
  for (int spins = 0;; ++spins) {
    int done = 0;
    code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || done != 0) return code;
    if (spins < kSpins) continue;
    const timespec pause{0, kSleepNs};
    nanosleep(&pause, nullptr);
  }
}

int Init(int* rank, int* size) {
  int provided = MPI_THREAD_SINGLE;
  int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (code != MPI_SUCCESS) return code;
  if (provided < MPI_THREAD_SERIALIZED) return kNotEnoughThreads;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  code = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  return code != MPI_SUCCESS ? code : MPI_Comm_size(MPI_COMM_WORLD, size);
}

int Split(int group, int color, int* part, int* rank, int* size) {
  if (n_groups == kMostGroups) return kTooManyGroups;
  int all_rank = 0;
  int code = MPI_Comm_rank(groups[group], &all_rank);
  if (code == MPI_SUCCESS) {
    code = MPI_Comm_split(groups[group], color, all_rank, &groups[n_groups]);
  }
  if (code != MPI_SUCCESS) return code;
  *part = n_groups++;
  MPI_Comm_set_errhandler(groups[*part], MPI_ERRORS_RETURN);
  code = MPI_Comm_rank(groups[*part], rank);
  return code != MPI_SUCCESS ? code : MPI_Comm_size(groups[*part], size);
}

int AllToAll(int group, const void* send, void* receive, int bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code =
      MPI_Ialltoall(send, bytes, MPI_BYTE, receive, bytes, MPI_BYTE, groups[group], &request);
  return Complete(code, &request);
}

int AllGather(int group, const void* send, void* receive, int bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code =
      MPI_Iallgather(send, bytes, MPI_BYTE, receive, bytes, MPI_BYTE, groups[group], &request);
  return Complete(code, &request);
}

int Broadcast(int group, void* data, int bytes, int root) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Ibcast(data, bytes, MPI_BYTE, root, groups[group], &request);
  return Complete(code, &request);
}

int Barrier(int group) {
  MPI_Request request = MPI_REQUEST_NULL;
  return Complete(MPI_Ibarrier(groups[group], &request), &request);
}

int Finalize() { return MPI_Finalize(); }

void Describe(int code, char* text, size_t size) {
  if (code == kNotEnoughThreads) {
    std::snprintf(text, size, "this MPI does not support MPI_THREAD_SERIALIZED");
    return;
  }
  if (code == kTooManyGroups) {
    std::snprintf(text, size, "more than %d groups of ranks", kMostGroups);
    return;
  }
  char message[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, message, &length) != MPI_SUCCESS) length = 0;
  std::snprintf(text, size, "%.*s (code %d)", length, message, code);
}

constexpr TandemMpiFunctions kFunctions = {
    kTandemMpiVersion, Init, Split, AllToAll, AllGather, Broadcast, Barrier, Finalize, Describe};

}  // namespace

extern "C" __attribute__((visibility("default"))) const TandemMpiFunctions* tandem_mpi_functions() {
  return &kFunctions;
}
