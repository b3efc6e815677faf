#include "engine/sampling/logprobs.h"

#include <algorithm>

namespace tandem::engine {

ScoredToken ScoreToken(std::span<const float> logits, float lse, TokenId token, int n_top,
                       ScoreScratch& scratch) {
  ScoredToken scored;
  const auto index = static_cast<size_t>(token);
  const float value = logits[index];
  scored.logprob = value - lse;

  // 32-bit counts, as wide as the values, so that both loops vectorise.
  int32_t better = 0;
  for (size_t i = 0; i < index; ++i) better += static_cast<int32_t>(logits[i] >= value);
  for (size_t i = index + 1; i < logits.size(); ++i) {
    better += static_cast<int32_t>(logits[i] > value);
  }
  scored.rank = int64_t{better} + 1;

  if (n_top > 0) {
    std::vector<Candidate>& buffer = scratch.buffer;
    const ScannedRow row = Scan(logits, scratch.run_maxima);
    const Candidate last = KthBest(row, n_top, buffer);
    if (last.id < 0) return scored;
    Gather(row, last, last.value, buffer);
    std::sort(buffer.begin(), buffer.end(), IsBetter);
    scored.top.reserve(buffer.size());
    for (const Candidate& candidate : buffer) {
      scored.top.emplace_back(candidate.id, candidate.value - lse);
    }
  }
  return scored;
}

}  // namespace tandem::engine
