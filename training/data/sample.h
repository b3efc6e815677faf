#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::training {

// One training text as tokens; every format ends here. trained[i] tells whether the prediction of
// tokens[i] counts; tokens[0] is never predicted.
struct Sample {
  std::vector<TokenId> tokens;
  std::vector<uint8_t> trained;  // same size as tokens
  // Begin of a pair's second sequence; 0: no pair. A pair is two consecutive sequences, each with
  // its prompt; the first holds the preferred answer.
  size_t second = 0;

  bool is_pair() const { return second > 0; }
  size_t n_sequences() const { return is_pair() ? 2 : 1; }
  size_t SequenceBegin(size_t k) const { return k == 0 ? 0 : second; }
  size_t SequenceEnd(size_t k) const { return k == 0 && is_pair() ? second : tokens.size(); }

  void Append(const std::vector<TokenId>& ids, bool train) {
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    trained.insert(trained.end(), ids.size(), train ? 1 : 0);
  }
};

// Continues a shorter sample with `pad` to `n_tokens` and trains on every token, padding included:
// the mean loss of pipelines without a mask.
inline void TrainOnAll(Sample* sample, size_t n_tokens, TokenId pad) {
  if (sample->tokens.size() < n_tokens) sample->tokens.resize(n_tokens, pad);
  sample->trained.assign(sample->tokens.size(), 1);
}

// Tokens of the sample; for a pair of its longer sequence.
inline int64_t LongestSequence(const Sample& sample) {
  size_t longest = 0;
  for (size_t k = 0; k < sample.n_sequences(); ++k) {
    longest = std::max(longest, sample.SequenceEnd(k) - sample.SequenceBegin(k));
  }
  return static_cast<int64_t>(longest);
}

// Keeps the last `max_tokens` tokens, for a pair those of each sequence. The first kept token is
// only read, as in any sample.
inline void KeepEnds(Sample* sample, int64_t max_tokens) {
  const auto most = static_cast<size_t>(max_tokens);
  Sample kept;
  for (size_t k = 0; k < sample->n_sequences(); ++k) {
    const size_t end = sample->SequenceEnd(k);
    const size_t begin = std::max(sample->SequenceBegin(k), end - std::min(end, most));
    if (k == 1) kept.second = kept.tokens.size();
    const auto tokens = sample->tokens.begin();
    const auto trained = sample->trained.begin();
    kept.tokens.insert(kept.tokens.end(), tokens + static_cast<std::ptrdiff_t>(begin),
                       tokens + static_cast<std::ptrdiff_t>(end));
    kept.trained.insert(kept.trained.end(), trained + static_cast<std::ptrdiff_t>(begin),
                        trained + static_cast<std::ptrdiff_t>(end));
  }
  *sample = std::move(kept);
}

// Counts trained tokens among the first `max_tokens` (0: all); the first token never counts. For a
// pair: among the first of each sequence, and 0 when one of them has none.
inline int64_t TrainedTokens(const Sample& sample, int64_t max_tokens = 0) {
  int64_t trained = 0;
  for (size_t k = 0; k < sample.n_sequences(); ++k) {
    const auto begin = static_cast<std::ptrdiff_t>(sample.SequenceBegin(k));
    const auto n = static_cast<std::ptrdiff_t>(sample.SequenceEnd(k)) - begin;
    const std::ptrdiff_t seen = max_tokens > 0 ? std::min<std::ptrdiff_t>(n, max_tokens) : n;
    if (seen < 2) return 0;
    const auto first = sample.trained.begin() + begin;
    const int64_t here = std::count(first + 1, first + seen, 1);
    if (here == 0) return 0;
    trained += here;
  }
  return trained;
}

// Counts trained tokens among the last `max_tokens`.
inline int64_t TrainedTokensOfEnds(Sample sample, int64_t max_tokens) {
  KeepEnds(&sample, max_tokens);
  return TrainedTokens(sample);
}

}  // namespace tandem::training
