#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// The rewriting rules of a SentencePiece model (`precompiled_charsmap`): texts and what stands in
// their place, as a double-array trie with the replacements behind it. Immutable.
class Charsmap {
 public:
  // `blob`: size of the trie in bytes (32 bits, little endian), the trie's units (32 bits each),
  // replacements that each end with a zero byte. Every place in it is checked: what leaves it, goes
  // in circles or is beyond the limits below is kDataLoss naming `file` and `field`.
  static Charsmap Parse(std::string_view blob, const std::string& file, const std::string& field);

  static constexpr size_t kLongestRule = 256;         // bytes
  static constexpr size_t kLongestReplacement = 256;  // bytes

  struct Match {
    size_t size;  // bytes of the text
    std::string_view replacement;
  };
  // Of the rules that the text begins with. REQUIRES: text is valid UTF-8.
  std::optional<Match> Longest(std::string_view text) const;
  std::optional<Match> Shortest(std::string_view text) const;

 private:
  Charsmap() = default;
  template <class Each>
  void ForEachPrefix(std::string_view text, Each&& each) const;
  std::string_view ReplacementAt(size_t at) const;
  void CheckUnits(const std::string& file, const std::string& field) const;
  void CheckValue(uint32_t unit, const std::string& file, const std::string& field) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace tandem::engine
