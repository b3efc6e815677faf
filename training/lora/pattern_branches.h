#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::training {

// One of the alternatives of a regular expression: "b" of "x(a|b)|c".
struct PatternBranch {
  size_t first = 0;   // where it stands in the expression
  size_t last = 0;    // behind it
  std::string alone;  // the expression without what is tried in its place: "x(b)"
};

// All alternatives of an expression (ECMAScript), on whatever level they stand, in the order in
// which they begin, so that each can be asked what it matches. Left out are those of which that
// cannot be said: in groups that repeat or look ahead, and all where one refers back to a group.
std::vector<PatternBranch> BranchesOf(std::string_view pattern);

}  // namespace tandem::training
