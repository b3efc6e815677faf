#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::engine {

// Drafts by prompt look-up: the tokens that followed an earlier occurrence of the text's last
// tokens (Saxena 2023, "Prompt Lookup Decoding"). Of several occurrences the longest match wins,
// then the latest. One thread.
class PromptLookup {
 public:
  // Fewer equal tokens are not a match.
  static constexpr int64_t kLeastMatch = 3;

  // Appends tokens to the text. O(1) each, amortised. Throws std::bad_alloc and then appends none.
  void Add(std::span<const TokenId> tokens);

  // Appends up to `most` tokens to `draft`; none without a match. The look-up visits at most
  // kMostMatches occurrences.
  void Draft(int64_t most, std::vector<TokenId>& draft) const;

  int64_t length() const { return static_cast<int64_t>(text_.size()); }

 private:
  static constexpr int kMostMatches = 32;
  static constexpr int64_t kLongestMatch = 32;

  uint32_t BucketEndingAt(int64_t position) const;
  void Link(int64_t position);
  int64_t MatchLength(int64_t position) const;

  std::vector<TokenId> text_;
  // Chains of the positions at which a group of kLeastMatch tokens ends, latest first; -1: the end.
  std::vector<int32_t> heads_;    // by hash; the size is a power of two
  std::vector<int32_t> earlier_;  // by position
};

}  // namespace tandem::engine
