#include "training/lora/pattern_branches.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tandem::training {
namespace {

// The text between parentheses, or the whole expression.
struct Group {
  size_t first = 0;
  size_t last = 0;
  std::vector<size_t> bars = {};  // the positions of its own "|"
  bool is_opaque = false;         // repeats, or looks ahead

  bool Holds(const Group& other) const { return first <= other.first && other.last <= last; }
};

class Scanner {
 public:
  explicit Scanner(std::string_view pattern) : pattern_(pattern) {}

  // All groups. Empty when parentheses do not match or the pattern has a back reference.
  std::vector<Group> Scan() {
    open_.push_back({});
    for (size_t i = 0; i < pattern_.size(); ++i) {
      const char c = pattern_[i];
      if (c == '\\') {
        ++i;
        if (i < pattern_.size() && pattern_[i] >= '1' && pattern_[i] <= '9') return {};
      } else if (c == '[') {
        i = EndOfClass(i);
      } else if (c == '(') {
        Open(i + 1);
      } else if (c == '|') {
        open_.back().bars.push_back(i);
      } else if (c == ')') {
        if (open_.size() < 2) return {};
        Close(i);
      }
    }
    if (open_.size() != 1) return {};
    Close(pattern_.size());
    return std::move(closed_);
  }

 private:
  size_t EndOfClass(size_t bracket) const {
    for (size_t i = bracket + 1; i < pattern_.size(); ++i) {
      if (pattern_[i] == ']') return i;
      if (pattern_[i] == '\\') ++i;
    }
    return pattern_.size();
  }

  void Open(size_t at) {
    const std::string_view rest = pattern_.substr(at);
    const bool looks_ahead = rest.starts_with("?=") || rest.starts_with("?!");
    const bool has_mark = looks_ahead || rest.starts_with("?:");
    open_.push_back({.first = at + (has_mark ? 2 : 0), .is_opaque = looks_ahead});
  }

  void Close(size_t at) {
    Group group = std::move(open_.back());
    open_.pop_back();
    group.last = at;
    // "?" takes one alternative or none; other quantifiers may take a different one each time.
    const char next = at + 1 < pattern_.size() ? pattern_[at + 1] : '\0';
    group.is_opaque = group.is_opaque || next == '*' || next == '+' || next == '{';
    closed_.push_back(std::move(group));
  }

  const std::string_view pattern_;
  std::vector<Group> open_;  // the whole expression first
  std::vector<Group> closed_;
};

// The range of the alternative of `group` that contains the position.
std::pair<size_t, size_t> AlternativeAt(const Group& group, size_t at) {
  size_t first = group.first;
  for (const size_t bar : group.bars) {
    if (at <= bar) return {first, bar};
    first = bar + 1;
  }
  return {first, group.last};
}

// The expression with only one alternative in each group around the position.
std::string Alone(std::string_view pattern, const std::vector<Group>& around, size_t at) {
  std::vector<bool> kept(pattern.size(), true);
  for (const Group& group : around) {
    const auto [first, last] = AlternativeAt(group, at);
    for (size_t i = group.first; i < group.last; ++i) {
      if (i < first || i >= last) kept[i] = false;
    }
  }
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (kept[i]) text += pattern[i];
  }
  return text;
}

}  // namespace

std::vector<PatternBranch> BranchesOf(std::string_view pattern) {
  const std::vector<Group> groups = Scanner(pattern).Scan();
  std::vector<PatternBranch> branches;
  for (const Group& group : groups) {
    if (group.bars.empty()) continue;
    std::vector<Group> around;
    std::copy_if(groups.begin(), groups.end(), std::back_inserter(around),
                 [&](const Group& other) { return other.Holds(group); });
    const bool can_say = std::none_of(around.begin(), around.end(),
                                      [](const Group& other) { return other.is_opaque; });
    if (!can_say) continue;
    std::vector<size_t> begins = {group.first};
    for (const size_t bar : group.bars) begins.push_back(bar + 1);
    for (const size_t begin : begins) {
      const auto [first, last] = AlternativeAt(group, begin);
      branches.push_back({first, last, Alone(pattern, around, begin)});
    }
  }
  std::stable_sort(branches.begin(), branches.end(),
                   [](const PatternBranch& a, const PatternBranch& b) {
                     return a.first != b.first ? a.first < b.first : a.last > b.last;
                   });
  return branches;
}

}  // namespace tandem::training
