#pragma once

#include <cstdint>
#include <iosfwd>

namespace tandem::bench {

struct SampleBenchOptions {
  int64_t vocab_size = 262144;
  int rounds = 5;
};

// Measures processor milliseconds per token drawn from one row of logits on one thread, over peaked
// and flat rows. Cases are greedy, temperature, top_k with top_p, a broad top_p, penalties,
// logit_bias and log-probabilities. Each is compared with one pass over the row, the least that a
// draw must read. Rows cycle through more memory than the caches hold, as after a step.
int RunSampleBench(std::ostream& out, const SampleBenchOptions& options);

}  // namespace tandem::bench
