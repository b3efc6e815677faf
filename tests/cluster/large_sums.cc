// Run by mpirun on two ranks: a sum and a broadcast of more than 2^31 bytes. MPI counts with int.

#include <cstdio>
#include <vector>

#include "training/dist/collectives.h"
#include "training/dist/mpi_transport.h"

namespace tandem::training {
namespace {

int SumLargeBuffers(const char* plugin) {
  Collectives ranks([&] { return OpenMpiTransport({plugin}); }, {});
  const size_t n = (size_t{1} << 29) + 12345;
  std::vector<float> data(n);
  for (size_t i = 0; i < n; ++i) {
    data[i] = static_cast<float>(i % 1000 + static_cast<size_t>(ranks.rank()));
  }
  ranks.AllReduce(data);
  size_t wrong = 0;
  for (size_t i = 0; i < n; ++i) wrong += data[i] == static_cast<float>(2 * (i % 1000) + 1) ? 0 : 1;
  data[n - 1] = static_cast<float>(ranks.rank() + 7);
  ranks.Broadcast(std::as_writable_bytes(std::span(data)), 1);
  if (data[n - 1] != 8) ++wrong;
  std::printf("rank %d of %d: %zu numbers are wrong\n", ranks.rank(), ranks.size(), wrong);
  const bool is_pair = ranks.size() == 2;
  ranks.Finish();
  return wrong == 0 && is_pair ? 0 : 1;
}

}  // namespace
}  // namespace tandem::training

int main(int argc, char** argv) {
  return argc == 2 ? tandem::training::SumLargeBuffers(argv[1]) : 2;
}
