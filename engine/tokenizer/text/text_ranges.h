#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace tandem::engine {

// Bytes [begin, end) of a text. Lists of ranges are sorted; their ranges are not empty and do not
// overlap.
using TextRange = std::pair<size_t, size_t>;

// Looks up ranges at non-decreasing positions. All calls together take time linear in the list.
// Borrows the list.
class RangeCursor {
 public:
  explicit RangeCursor(std::span<const TextRange> ranges) : ranges_(ranges) {}

  // Whether a range contains a byte of [begin, end). REQUIRES: no earlier call had a later begin.
  bool Touches(size_t begin, size_t end) {
    while (next_ < ranges_.size() && ranges_[next_].second <= begin) ++next_;
    return begin < end && next_ < ranges_.size() && ranges_[next_].first < end;
  }

  // Calls each(begin, end) for every part of [begin, end) inside a range. Same requirement.
  template <class Each>
  void ForEachIn(size_t begin, size_t end, Each&& each) {
    if (!Touches(begin, end)) return;
    for (size_t i = next_; i < ranges_.size() && ranges_[i].first < end; ++i) {
      each(std::max(begin, ranges_[i].first), std::min(end, ranges_[i].second));
    }
  }

 private:
  std::span<const TextRange> ranges_;
  size_t next_ = 0;  // first range that ends after the last `begin`
};

// Appends [begin, end) to a list and joins it to the last range if they touch.
inline void AppendRange(std::vector<TextRange>& ranges, size_t begin, size_t end) {
  if (begin >= end) return;
  if (!ranges.empty() && ranges.back().second == begin) {
    ranges.back().second = end;
  } else {
    ranges.emplace_back(begin, end);
  }
}

// Returns the ranges inside [begin, end), relative to `begin`.
inline std::vector<TextRange> RangesWithin(std::span<const TextRange> ranges, size_t begin,
                                           size_t end) {
  const auto first =
      std::partition_point(ranges.begin(), ranges.end(),
                           [begin](const TextRange& range) { return range.second <= begin; });
  std::vector<TextRange> within;
  RangeCursor cursor(ranges.subspan(static_cast<size_t>(first - ranges.begin())));
  cursor.ForEachIn(begin, end,
                   [&](size_t from, size_t to) { AppendRange(within, from - begin, to - begin); });
  return within;
}

}  // namespace tandem::engine
