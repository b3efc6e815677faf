#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/utf8.h"

namespace tandem::engine {

// U+2581, SentencePiece's character for the space.
inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";

// Splits text into valid UTF-8 and stretches without any whole character, in order and never empty:
// sink(std::string_view stretch, bool valid).
template <class Sink>
void ForEachUtf8Stretch(std::string_view text, Sink&& sink) {
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    if (valid > 0) sink(text.substr(0, valid), true);
    text.remove_prefix(valid);
    size_t invalid = 0;
    while (invalid < text.size()) {
      const Utf8Unit unit = NextUtf8(text.substr(invalid));
      if (unit.kind == Utf8Kind::kWhole) break;
      invalid += unit.size;
    }
    if (invalid > 0) sink(text.substr(0, invalid), false);
    text.remove_prefix(invalid);
  }
}

// The character classes of pre-tokenizer patterns: \p{L}, \p{N}, White_Space, the rest.
enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };
CharClass ClassOf(uint32_t code_point);

// `\w` as in Rust's regex crate, which decides AddedToken::single_word.
bool IsWordCharacter(uint32_t code_point);

// Classes of normalisers and pre-tokenizers. Where a reference implementation uses tables of an old
// Unicode version, newer characters are unclassified here too.
bool IsWhiteSpace(uint32_t code_point);       // White_Space
bool IsPunctuation(uint32_t code_point);      // \p{P} of Unicode 8, or ASCII punctuation
bool IsMark(uint32_t code_point);             // \p{M}
bool IsNonspacingMark(uint32_t code_point);   // \p{Mn} of Unicode 8
bool IsControlOrFormat(uint32_t code_point);  // \p{Cc}, \p{Cf}, \p{Co} of Unicode 8
uint32_t ScriptOf(uint32_t code_point);       // equal numbers are one script; 0 is none

// Appends the lower case of a character, independent of its neighbours.
void AppendLowercase(uint32_t code_point, std::string& out);

// Splits text into extended grapheme clusters: sink(std::string_view). REQUIRES: text is valid
// UTF-8 and under 2 GiB. Linear.
void ForEachGrapheme(std::string_view text, const std::function<void(std::string_view)>& sink);

// GPT-2 spells every byte as one printable character: printable Latin-1 bytes as themselves, all
// others from U+0100 on. 'Ġ' is the space.
void AppendByteSpelling(std::string_view bytes, std::string& out);
std::optional<std::string> BytesOfSpelling(
    std::string_view spelling);  // nullopt: foreign character

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// REQUIRES: text is valid UTF-8. Linear, also for long runs of combining marks.
std::string Normalize(NormalForm form, std::string_view text);

}  // namespace tandem::engine
