#include "engine/sampling/logprobs.h"

#include <algorithm>

namespace tandem::engine {

ScoredToken ScoreToken(std::span<const float> logits, float lse, TokenId token, int n_top,
                       std::vector<Candidate>& buffer) {
  ScoredToken scored;
  const auto index = static_cast<size_t>(token);
  const float value = logits[index];
  scored.logprob = value - lse;

  int64_t better = 0;
  for (size_t i = 0; i < index; ++i) better += logits[i] >= value ? 1 : 0;
  for (size_t i = index + 1; i < logits.size(); ++i) better += logits[i] > value ? 1 : 0;
  scored.rank = better + 1;

  if (n_top > 0) {
    const Candidate last = KthBest(logits, n_top, buffer);
    if (last.id < 0) return scored;
    Gather(logits, last, last.value, buffer);
    std::sort(buffer.begin(), buffer.end(), IsBetter);
    scored.top.reserve(buffer.size());
    for (const Candidate& candidate : buffer) {
      scored.top.emplace_back(candidate.id, candidate.value - lse);
    }
  }
  return scored;
}

}  // namespace tandem::engine
