#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::convert {

// A leaf in `_METADATA`.
struct TreeEntry {
  std::vector<std::string> path;  // keys of the tree, outermost first
  std::string value_type;         // "jax.Array", "None", …; empty: not given
};

// Parses `_METADATA` as a stream, so memory grows with the entries and not with the JSON text. Uses
// the keys in `key_metadata`; ignores an entry's name, which is Python text, and unknown fields.
// Throws kDataLoss naming `what` and the byte, also for more than kMaxTreeEntries entries.
std::vector<TreeEntry> ParseTreeMetadata(std::string_view json, const std::string& what);

// A model with optimizer state in unscanned layers has some ten thousand entries.
inline constexpr size_t kMaxTreeEntries = size_t{1} << 18;

}  // namespace tandem::convert
