#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::convert {

// A leaf of the tree that `_METADATA` describes.
struct TreeEntry {
  std::vector<std::string> path;  // keys of the tree, outermost first
  std::string value_type;         // "jax.Array", "None", …; empty when the file does not say
};

// Parses `_METADATA` as a stream, so memory grows with the entries and not with the JSON text.
// Takes the keys of `key_metadata`; ignores the Python text that names an entry, and unknown
// fields. Throws kDataLoss naming `what` and the byte, also for more than kMaxTreeEntries entries.
std::vector<TreeEntry> ParseTreeMetadata(std::string_view json, const std::string& what);

// A model with an optimizer's state in unscanned layers has some ten thousand.
inline constexpr size_t kMaxTreeEntries = size_t{1} << 18;

}  // namespace tandem::convert
