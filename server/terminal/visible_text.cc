#include "server/terminal/visible_text.h"

#include <cstdint>
#include <cstdio>

#include "engine/base/utf8.h"

namespace tandem::server {
namespace {

// Characters without a glyph that change how the text around them looks. The joiners U+200C and
// U+200D stay: scripts and emoji need them.
bool IsDeceptive(uint32_t c) {
  return (c >= 0x80 && c <= 0x9F) || c == 0x061C || c == 0x180E || c == 0x200B || c == 0x200E ||
         c == 0x200F || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) ||
         c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB) || (c >= 0xE0000 && c <= 0xE007F);
}

void AppendVisible(uint32_t c, bool is_one_line, std::string& out) {
  if (c < 0x20 && (is_one_line || (c != '\n' && c != '\t'))) {
    AppendUtf8(0x2400 + c, out);
  } else if (c == 0x7F) {
    AppendUtf8(0x2421, out);
  } else if (IsDeceptive(c)) {
    char shown[16];
    std::snprintf(shown, sizeof shown, "<U+%04X>", static_cast<unsigned>(c));
    out += shown;
  } else {
    AppendUtf8(c, out);
  }
}

// Appends all of `bytes` but an unfinished end, and returns the length of that end.
size_t AppendFiltered(std::string_view bytes, bool is_one_line, std::string& out) {
  while (!bytes.empty()) {
    const Utf8Unit unit = NextUtf8(bytes);
    if (unit.kind == Utf8Kind::kTruncated) return bytes.size();
    if (bytes.front() == '\r' && !is_one_line) {
      if (bytes.size() == 1) return 1;
      if (bytes[1] == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    if (unit.kind == Utf8Kind::kInvalid) {
      AppendUtf8(0xFFFD, out);
    } else {
      AppendVisible(DecodeUtf8(bytes.data()).value, is_one_line, out);
    }
    bytes.remove_prefix(unit.size);
  }
  return 0;
}

std::string_view HeldShown(std::string_view held) {
  if (held.empty()) return "";
  return held == "\r" ? "\xE2\x90\x8D" : "\xEF\xBF\xBD";
}

}  // namespace

std::string VisibleStream::Feed(std::string_view bytes) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined += bytes;
    bytes = joined;
  }
  std::string out;
  const size_t n_held = AppendFiltered(bytes, false, out);
  held_ = std::string(bytes.substr(bytes.size() - n_held));
  return out;
}

std::string VisibleStream::Finish() {
  std::string out(HeldShown(held_));
  held_.clear();
  return out;
}

std::string VisibleText(std::string_view text) {
  VisibleStream stream;
  std::string out = stream.Feed(text);
  return out + stream.Finish();
}

std::string VisibleLine(std::string_view text, size_t longest) {
  std::string out;
  const std::string_view shown = text.substr(0, longest);
  const size_t n_held = AppendFiltered(shown, true, out);
  if (shown.size() < text.size()) return out + "\xE2\x80\xA6";
  return out.append(HeldShown(shown.substr(shown.size() - n_held)));
}

}  // namespace tandem::server
