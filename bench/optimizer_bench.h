#pragma once

#include <cstdint>
#include <iosfwd>

namespace tandem::bench {

struct OptimizerBenchOptions {
  int64_t elements = 32 << 20;  // more than the caches hold
  int threads = 0;              // 0: physical cores
  int rounds = 5;
  int64_t steps = 3;  // per round; the best counts
};

// One step of each optimiser over one large tensor: GB/s that it must read and write, and their
// share of the read loop's in the same round.
int RunOptimizerBench(std::ostream& out, const OptimizerBenchOptions& options);

}  // namespace tandem::bench
