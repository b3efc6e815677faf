#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

std::string Reversed(std::string_view text);

// Tells whether a name ends with one of many texts. Takes logarithmic time in their number, so that
// an adapter with a million entries costs no more than its size.
class NameEnds {
 public:
  explicit NameEnds(const std::vector<std::string>& ends);

  bool HasEndOf(std::string_view name) const;

 private:
  std::set<std::string> reversed_;  // none begins with another
};

// Tells which texts end one of many names, likewise.
class EndedNames {
 public:
  void Add(std::string_view name) { reversed_.insert(Reversed(name)); }
  bool HasNameWith(std::string_view end) const;

 private:
  std::set<std::string> reversed_;
};

}  // namespace tandem::engine
