#pragma once

#include <cstdint>
#include <iosfwd>

namespace tandem::bench {

struct OptimizerBenchOptions {
  int64_t elements = 32 << 20;  // exceeds the caches
  int threads = 0;              // 0: physical cores
  int rounds = 5;
  int64_t steps = 3;  // per round; the best counts
};

// Runs one step of each optimiser over a large tensor. Prints GB/s read and written, and their
// share of the read loop's in the same round.
int RunOptimizerBench(std::ostream& out, const OptimizerBenchOptions& options);

}  // namespace tandem::bench
