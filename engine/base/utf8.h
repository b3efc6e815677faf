#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

// UTF-8 by RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. The only
// implementation for all readers and writers of text. Inline, because tokenizers call it for every
// character.
namespace tandem {

// Kind of the first unit of some bytes, by Unicode's "maximal subpart" rule.
enum class Utf8Kind {
  kWhole,      // a whole character of `size` bytes
  kInvalid,    // `size` bytes that no continuation can make a character
  kTruncated,  // all bytes left; more bytes could complete a character
};
struct Utf8Unit {
  Utf8Kind kind;
  uint32_t size;
};
// REQUIRES: bytes is not empty.
inline Utf8Unit NextUtf8(std::string_view bytes) {
  const auto at = [bytes](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {Utf8Kind::kWhole, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Kind::kInvalid, 1};
  const uint32_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (uint32_t i = 1; i < length; ++i) {
    if (i >= bytes.size()) return {Utf8Kind::kTruncated, i};
    const unsigned char b = at(i);
    if (b < low || b > high) return {Utf8Kind::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::kWhole, length};
}

// Length of the whole character at the beginning; 0 when it is not whole. REQUIRES: bytes is not
// empty.
inline size_t WholeCharacterBytes(std::string_view bytes) {
  const Utf8Unit unit = NextUtf8(bytes);
  return unit.kind == Utf8Kind::kWhole ? unit.size : 0;
}

// A decoded code point. DecodeUtf8 REQUIRES: p points to a whole character.
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

// REQUIRES: code_point is at most U+10FFFF and no surrogate.
inline void AppendUtf8(uint32_t code_point, std::string& out) {
  const uint32_t c = code_point;
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | c >> 6));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | c >> 12));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | c >> 18));
    out.push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

// Length of the longest prefix that is valid UTF-8.
inline size_t ValidUtf8Prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    if (i + 8 <= text.size()) {
      uint64_t word;
      std::memcpy(&word, text.data() + i, 8);
      if ((word & 0x8080808080808080ull) == 0) {
        i += 8;
        continue;
      }
    }
    const Utf8Unit unit = NextUtf8(text.substr(i));
    if (unit.kind != Utf8Kind::kWhole) break;
    i += unit.size;
  }
  return i;
}

inline bool IsValidUtf8(std::string_view text) { return ValidUtf8Prefix(text) == text.size(); }

}  // namespace tandem
