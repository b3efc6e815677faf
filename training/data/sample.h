#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::training {

// One training text as tokens. trained[i] says whether predicting tokens[i] counts; tokens[0] is
// never predicted. Every format ends here.
struct Sample {
  std::vector<TokenId> tokens;
  std::vector<uint8_t> trained;  // as long as tokens

  void Append(const std::vector<TokenId>& ids, bool train) {
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    trained.insert(trained.end(), ids.size(), train ? 1 : 0);
  }
};

// Keeps the last `max_tokens` tokens. The first of them is only read, like any sample's first.
inline void KeepEnd(Sample* sample, int64_t max_tokens) {
  const auto surplus = static_cast<std::ptrdiff_t>(sample->tokens.size()) - max_tokens;
  if (surplus <= 0) return;
  sample->tokens.erase(sample->tokens.begin(), sample->tokens.begin() + surplus);
  sample->trained.erase(sample->trained.begin(), sample->trained.begin() + surplus);
}

// How many tokens of the sample's first `max_tokens` (0: of all) are trained; the first never is.
inline int64_t TrainedTokens(const Sample& sample, int64_t max_tokens = 0) {
  const auto n = static_cast<int64_t>(sample.trained.size());
  const int64_t seen = max_tokens > 0 ? std::min(n, max_tokens) : n;
  if (seen < 2) return 0;
  return std::count(sample.trained.begin() + 1, sample.trained.begin() + seen, 1);
}

// The same of its last `max_tokens`.
inline int64_t TrainedTokensOfEnd(const Sample& sample, int64_t max_tokens) {
  const auto n = static_cast<int64_t>(sample.trained.size());
  const int64_t first = std::max<int64_t>(0, n - max_tokens);
  if (n - first < 2) return 0;
  return std::count(sample.trained.begin() + first + 1, sample.trained.end(), 1);
}

}  // namespace tandem::training
