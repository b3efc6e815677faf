#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// The rewriting rules of a SentencePiece model (`precompiled_charsmap`): a double-array trie of
// texts, followed by their replacements. Immutable.
class Charsmap {
 public:
  // `blob`: size of the trie in bytes (32 bits, little endian), the trie's units (32 bits each),
  // and replacements that each end with a zero byte. Throws kDataLoss naming `file` and `field` for
  // indexes outside the trie, cycles, and rules beyond the limits below.
  static Charsmap Parse(std::string_view blob, const std::string& file, const std::string& field);

  static constexpr size_t kLongestRule = 256;         // bytes
  static constexpr size_t kLongestReplacement = 256;  // bytes

  struct Match {
    size_t size;  // bytes of the text
    std::string_view replacement;
  };
  // Longest and shortest rule that the text begins with. REQUIRES: text is valid UTF-8.
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
