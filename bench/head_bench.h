#pragma once

#include <cstdint>
#include <iosfwd>

namespace tandem::bench {

// `tandem bench head`: the loss over a large vocabulary, forward and backward, beside the matrix
// products in it on all rows at once, which nothing can do without: logits, input gradient and, of
// a head that is trained, weight gradient. Also the bytes it takes besides its arguments.
struct HeadBenchOptions {
  int64_t vocab = 262144;
  int64_t dim = 2304;
  int64_t rows = 512;
  int threads = 0;  // 0: physical cores
  int rounds = 5;
};

int RunHeadBench(std::ostream& out, const HeadBenchOptions& options);

}  // namespace tandem::bench
