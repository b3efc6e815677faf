#include "server/terminal/display_width.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "engine/base/utf8.h"

namespace tandem::server {
namespace {

struct Measured {
  size_t bytes;
  int width;
};

Measured MeasureNext(std::string_view text) {
  const Utf8Unit unit = NextUtf8(text);
  if (unit.kind != Utf8Kind::kWhole) return {unit.size, 1};
  return {unit.size, CharacterWidth(DecodeUtf8(text.data()).value)};
}

}  // namespace

int CharacterWidth(uint32_t code_point) {
  if (code_point < 0x20 || code_point == 0x7F) return 0;
  if (code_point < 0x7F) return 1;
  // Medial and final letters of Hangul join the initial letter.
  if (code_point >= 0x1160 && code_point <= 0x11FF) return 0;
  const auto c = static_cast<UChar32>(code_point);
  const auto type = static_cast<uint32_t>(u_charType(c));
  constexpr uint32_t kZeroWidth = U_GC_MN_MASK | U_GC_ME_MASK | U_GC_CF_MASK | U_GC_CC_MASK;
  if ((U_MASK(type) & kZeroWidth) != 0) return code_point == 0xAD ? 1 : 0;
  const int east_asian = u_getIntPropertyValue(c, UCHAR_EAST_ASIAN_WIDTH);
  return east_asian == U_EA_WIDE || east_asian == U_EA_FULLWIDTH ? 2 : 1;
}

int64_t DisplayWidth(std::string_view text) {
  int64_t width = 0;
  while (!text.empty()) {
    const Measured next = MeasureNext(text);
    width += next.width;
    text.remove_prefix(next.bytes);
  }
  return width;
}

std::string FitColumns(std::string_view text, int64_t columns) {
  columns = std::max<int64_t>(columns, 0);
  const int64_t whole = DisplayWidth(text);
  std::string out(text);
  int64_t width = whole;
  if (whole > columns) {
    size_t end = 0;
    width = 0;
    while (end < text.size()) {
      const Measured next = MeasureNext(text.substr(end));
      if (width + next.width > columns - 1) break;
      width += next.width;
      end += next.bytes;
    }
    out.resize(end);
    if (columns > 0) {
      out += "\xE2\x80\xA6";
      ++width;
    }
  }
  return out.append(static_cast<size_t>(columns - width), ' ');
}

}  // namespace tandem::server
