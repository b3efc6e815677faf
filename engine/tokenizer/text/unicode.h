#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/utf8.h"

namespace tandem::engine {

// U+2581, which stands for the space in vocabularies made by SentencePiece.
inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";

// Cuts text into stretches that are valid UTF-8 and stretches without any whole character, in
// order, none of them empty: sink(std::string_view stretch, bool valid).
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

// The classes that pre-tokenizer patterns speak of: \p{L}, \p{N}, White_Space, the rest.
enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };
CharClass ClassOf(uint32_t code_point);

// `\w` as Rust's regex crate has it, which decides where an added token is a single word.
bool IsWordCharacter(uint32_t code_point);

// The classes that normalisers and pre-tokenisers ask for. Where a reference implementation carries
// tables of an old Unicode, newer characters are left unclassified here too.
bool IsWhiteSpace(uint32_t code_point);       // White_Space
bool IsPunctuation(uint32_t code_point);      // \p{P} of Unicode 8, or ASCII punctuation
bool IsMark(uint32_t code_point);             // \p{M}
bool IsNonspacingMark(uint32_t code_point);   // \p{Mn} of Unicode 8
bool IsControlOrFormat(uint32_t code_point);  // \p{Cc}, \p{Cf}, \p{Co} of Unicode 8
uint32_t ScriptOf(uint32_t code_point);       // equal numbers are one script; 0 is none

// The lower case of each character on its own, whatever stands beside it.
void AppendLowercase(uint32_t code_point, std::string& out);

// Cuts text into extended grapheme clusters: sink(std::string_view).
// REQUIRES: text is valid UTF-8 and under 2 GiB. Linear.
void ForEachGrapheme(std::string_view text, const std::function<void(std::string_view)>& sink);

// GPT-2 writes every byte as one printable character: those that are printable in Latin-1 as
// themselves, the others as U+0100 onwards. 'Ġ' is the space.
void AppendByteSpelling(std::string_view bytes, std::string& out);
std::optional<std::string> BytesOfSpelling(
    std::string_view spelling);  // nullopt: foreign character

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// REQUIRES: text is valid UTF-8. Linear, also for endless runs of combining marks.
std::string Normalize(NormalForm form, std::string_view text);

}  // namespace tandem::engine
