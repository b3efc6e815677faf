#include "engine/speculation/prompt_lookup.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

constexpr size_t kLeastBuckets = 256;

}  // namespace

uint32_t PromptLookup::BucketEndingAt(int64_t position) const {
  uint64_t hash = 0;
  for (int64_t i = position - kLeastMatch + 1; i <= position; ++i) {
    hash = (hash ^ static_cast<uint32_t>(text_[static_cast<size_t>(i)])) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  }
  return static_cast<uint32_t>(hash & (heads_.size() - 1));
}

void PromptLookup::Link(int64_t position) {
  if (position + 1 < kLeastMatch) return;
  int32_t& head = heads_[BucketEndingAt(position)];
  earlier_[static_cast<size_t>(position)] = head;
  head = static_cast<int32_t>(position);
}

void PromptLookup::Add(std::span<const TokenId> tokens) {
  const size_t before = text_.size();
  const size_t after = before + tokens.size();
  TANDEM_CHECK(after <= static_cast<size_t>(std::numeric_limits<int32_t>::max()));
  // Everything that may throw comes first.
  const bool grows = after > heads_.size();
  std::vector<int32_t> heads;
  if (grows) heads.assign(std::bit_ceil(std::max(2 * after, kLeastBuckets)), -1);
  if (after > text_.capacity()) text_.reserve(std::max(after, 2 * before));
  if (after > earlier_.capacity()) earlier_.reserve(std::max(after, 2 * before));

  text_.insert(text_.end(), tokens.begin(), tokens.end());
  earlier_.resize(after, -1);
  if (grows) heads_.swap(heads);
  for (size_t i = grows ? 0 : before; i < after; ++i) Link(static_cast<int64_t>(i));
}

// Equal tokens before the end of the text and before the end of text_[0, position].
int64_t PromptLookup::MatchLength(int64_t position) const {
  const int64_t most = std::min(kLongestMatch, position + 1);
  int64_t n = 0;
  while (n < most &&
         text_[static_cast<size_t>(position - n)] == text_[static_cast<size_t>(length() - 1 - n)]) {
    ++n;
  }
  return n;
}

void PromptLookup::Draft(int64_t most, std::vector<TokenId>& draft) const {
  if (length() < kLeastMatch || most <= 0) return;
  int64_t best = -1;
  int64_t best_length = kLeastMatch - 1;
  int64_t position = earlier_.back();
  for (int i = 0; i < kMostMatches && position >= 0; ++i) {
    const int64_t n = MatchLength(position);
    if (n > best_length) {
      best = position;
      best_length = n;
      if (n == kLongestMatch) break;
    }
    position = earlier_[static_cast<size_t>(position)];
  }
  if (best < 0) return;
  // A match that overlaps the end repeats with its period.
  const int64_t period = length() - 1 - best;
  for (int64_t i = 0; i < most; ++i) {
    draft.push_back(text_[static_cast<size_t>(best + 1 + i % period)]);
  }
}

}  // namespace tandem::engine
