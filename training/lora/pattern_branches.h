#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::training {

// One alternative of a regular expression: "b" in "x(a|b)|c".
struct PatternBranch {
  size_t first = 0;   // its begin in the expression
  size_t last = 0;    // its end, exclusive
  std::string alone;  // the expression without competing alternatives: "x(b)"
};

// All alternatives of an ECMAScript expression at every level, ordered by begin. A caller can then
// test each alone. Omits alternatives in groups that repeat or look ahead. Empty when the
// expression has a back reference.
std::vector<PatternBranch> BranchesOf(std::string_view pattern);

}  // namespace tandem::training
