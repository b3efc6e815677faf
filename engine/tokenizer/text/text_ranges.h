#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace tandem::engine {

// [begin, end) in bytes of a text. A list of ranges is sorted; they are not empty and do not
// overlap.
using TextRange = std::pair<size_t, size_t>;

// Answers questions about ever later places of a text. All answers together take time linear in the
// list. Borrows the list.
class RangeCursor {
 public:
  explicit RangeCursor(std::span<const TextRange> ranges) : ranges_(ranges) {}

  // Whether a byte of [begin, end) lies in a range. REQUIRES: no earlier call had a later begin.
  bool Touches(size_t begin, size_t end) {
    while (next_ < ranges_.size() && ranges_[next_].second <= begin) ++next_;
    return begin < end && next_ < ranges_.size() && ranges_[next_].first < end;
  }

  // Calls each(begin, end) for every part of [begin, end) that lies in a range. Same requirement.
  template <class Each>
  void ForEachIn(size_t begin, size_t end, Each&& each) {
    if (!Touches(begin, end)) return;
    for (size_t i = next_; i < ranges_.size() && ranges_[i].first < end; ++i) {
      each(std::max(begin, ranges_[i].first), std::min(end, ranges_[i].second));
    }
  }

 private:
  std::span<const TextRange> ranges_;
  size_t next_ = 0;  // the first range that does not end before the last place asked about
};

// Adds [begin, end) at the end of a list, joined to the last range where they meet.
inline void AppendRange(std::vector<TextRange>& ranges, size_t begin, size_t end) {
  if (begin >= end) return;
  if (!ranges.empty() && ranges.back().second == begin) {
    ranges.back().second = end;
  } else {
    ranges.emplace_back(begin, end);
  }
}

// The ranges of the text [begin, end), counted from its own beginning.
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
