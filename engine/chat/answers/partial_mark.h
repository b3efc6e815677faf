#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace tandem::engine {

// White space of JSON and of layouts around calls.
inline constexpr std::string_view kWhiteSpace = " \t\r\n";

// Length of the longest suffix of `text` that is a proper prefix of `mark`. REQUIRES: `mark` is not
// empty.
inline size_t PartialEnd(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace tandem::engine
