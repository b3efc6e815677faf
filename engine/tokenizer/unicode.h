#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::engine {

// U+2581, which stands for the space in vocabularies made by SentencePiece.
inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";

// What stands at the beginning of some bytes, as Unicode's "maximal subpart" rule cuts them.
enum class Utf8Kind {
  kWhole,      // a whole character of `size` bytes
  kInvalid,    // `size` bytes that no continuation can make a character
  kTruncated,  // all `size` bytes there are; more of them could still make a character
};
struct Utf8Unit {
  Utf8Kind kind;
  uint32_t size;
};
// REQUIRES: bytes is not empty.
Utf8Unit NextUtf8(std::string_view bytes);

// The code point at p. REQUIRES: [p, end) begins with a whole character.
struct Utf8Char {
  uint32_t value;
  uint32_t size;  // bytes
};
inline Utf8Char DecodeUtf8(const char* p) {
  const auto at = [p](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(p[i])); };
  const uint32_t lead = at(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (at(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F), 4};
}
void AppendUtf8(uint32_t code_point, std::string& out);

// Length of the longest prefix that is valid UTF-8.
size_t ValidUtf8Prefix(std::string_view text);

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
