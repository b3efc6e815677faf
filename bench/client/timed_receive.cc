#include "bench/client/timed_receive.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <ctime>

namespace tandem::bench {
namespace {

double InSeconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double AgeOf(const msghdr& message) {
  const cmsghdr* note = CMSG_FIRSTHDR(&message);
  if (note == nullptr || note->cmsg_level != SOL_SOCKET || note->cmsg_type != SCM_TIMESTAMPNS) {
    return 0;
  }
  timespec arrived{};
  std::memcpy(&arrived, CMSG_DATA(note), sizeof arrived);
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);  // the clock of the kernel's note
  return std::max(0.0, InSeconds(now) - InSeconds(arrived));
}

}  // namespace

void NoteArrivals(int fd) {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
}

TimedReceive ReceiveTimed(int fd, char* buffer, size_t n_bytes) {
  iovec bytes{.iov_base = buffer, .iov_len = n_bytes};
  alignas(cmsghdr) char notes[CMSG_SPACE(sizeof(timespec))];
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = notes;
  message.msg_controllen = sizeof notes;
  const ssize_t got = recvmsg(fd, &message, 0);
  return {.n_bytes = got, .age_s = got > 0 ? AgeOf(message) : 0};
}

}  // namespace tandem::bench
