#pragma once

#include <cstdint>
#include <iosfwd>

namespace tandem::bench {

// `tandem bench head`: the loss over a large vocabulary, forward and backward, compared with its
// matrix products over all rows at once. These are logits and input gradient, and the weight
// gradient of a trained head. Also prints the bytes it needs besides its arguments.
struct HeadBenchOptions {
  int64_t vocab = 262144;
  int64_t dim = 2304;
  int64_t rows = 512;
  int threads = 0;  // 0: physical cores
  int rounds = 5;
};

int RunHeadBench(std::ostream& out, const HeadBenchOptions& options);

}  // namespace tandem::bench
