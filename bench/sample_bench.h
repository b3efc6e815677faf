#pragma once

#include <cstdint>
#include <iosfwd>

namespace tandem::bench {

struct SampleBenchOptions {
  int64_t vocab_size = 262144;
  int rounds = 5;
};

// Milliseconds of processor time per token of drawing from one row of logits on one thread: greedy,
// plain temperature, top_k with top_p, a broad top_p, penalties, logit_bias and log-probabilities,
// over peaked and flat rows. Each beside one pass over the row (its bytes, from memory), the least
// that any draw must read. Rows alternate through more memory than the caches hold, as after a
// step.
int RunSampleBench(std::ostream& out, const SampleBenchOptions& options);

}  // namespace tandem::bench
