#include "engine/chat/jinja/text.h"

#include <locale.h>
#include <string.h>
#include <wctype.h>

#include <algorithm>

#include "engine/base/utf8.h"

namespace tandem::engine {
namespace {

// The cost of a small string in addition to its bytes, so that a million of them are charged fully.
constexpr size_t kTextOverheadBytes = 96;

// The C library's Unicode tables, independent of the process locale. glibc has C.UTF-8 built in;
// without it only ASCII letters have case.
locale_t UnicodeLocale() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

bool IsAsciiUpper(char32_t c) { return c >= 'A' && c <= 'Z'; }
bool IsAsciiLower(char32_t c) { return c >= 'a' && c <= 'z'; }

bool InClass(char32_t c, int (*test)(wint_t, locale_t)) {
  return UnicodeLocale() != nullptr && test(static_cast<wint_t>(c), UnicodeLocale()) != 0;
}

template <class MapCodePoint>
TextPtr MapText(Runtime& rt, const Text& text, MapCodePoint map) {
  TextBuilder out(rt);
  text.ForEachRun(0, text.size(), [&](std::string_view part, bool from_client) {
    std::string mapped;
    mapped.reserve(part.size());
    for (size_t i = 0; i < part.size();) {
      const CodePoint c = ReadCodePoint(part, i);
      if (c.valid) {
        map(mapped, c.value);
      } else {
        mapped.push_back(part[i]);
      }
      i += c.bytes;
    }
    out.Append(mapped, from_client);
  });
  return out.Take();
}

}  // namespace

size_t Text::RunAt(size_t offset) const {
  const auto it = std::upper_bound(runs_.begin(), runs_.end(), offset,
                                   [](size_t value, const Run& run) { return value < run.end; });
  return static_cast<size_t>(it - runs_.begin());
}

bool Text::ClientAt(size_t offset) const {
  if (runs_.empty()) return client_;
  return runs_[std::min(RunAt(offset), runs_.size() - 1)].from_client;
}

void TextBuilder::Reserve(size_t bytes) {
  if (bytes > kMaxTextBytes - size()) {
    rt_.Fail("a string or the output exceeds " + std::to_string(kMaxTextBytes) + " bytes");
  }
  rt_.Work(bytes);
}

// Records the origin of the next bytes.
void TextBuilder::Mark(bool from_client) {
  if (size() == 0) {
    text_.client_ = from_client;
  } else if (text_.runs_.empty()) {
    if (text_.client_ == from_client) return;
    text_.runs_.push_back({static_cast<uint32_t>(size()), text_.client_});
    text_.runs_.push_back({0, from_client});
  } else if (text_.runs_.back().from_client != from_client) {
    rt_.Work(sizeof(Text::Run));
    text_.runs_.push_back({0, from_client});
  }
}

void TextBuilder::Append(std::string_view bytes, bool from_client) {
  if (bytes.empty()) return;
  Reserve(bytes.size());
  Mark(from_client);
  text_.bytes_.append(bytes);
  if (!text_.runs_.empty()) text_.runs_.back().end = static_cast<uint32_t>(size());
}

void TextBuilder::Append(const Text& text, size_t begin, size_t end) {
  text.ForEachRun(begin, end,
                  [this](std::string_view part, bool from_client) { Append(part, from_client); });
}

void TextBuilder::AppendRepeated(char byte, size_t count, bool from_client) {
  if (count == 0) return;
  Reserve(count);
  Mark(from_client);
  text_.bytes_.append(count, byte);
  if (!text_.runs_.empty()) text_.runs_.back().end = static_cast<uint32_t>(size());
}

TextPtr TextBuilder::Take() {
  rt_.Work(kTextOverheadBytes);
  auto taken = std::make_shared<const Text>(std::move(text_));
  text_ = Text(std::string(), false);
  return taken;
}

CodePoint ReadCodePoint(std::string_view bytes, size_t offset) {
  const size_t size = WholeCharacterBytes(bytes.substr(offset));
  if (size == 0) return {static_cast<unsigned char>(bytes[offset]), 1, false};
  return {DecodeUtf8(bytes.data() + offset).value, size, true};
}

size_t CountCodePoints(std::string_view bytes) {
  size_t count = 0;
  for (size_t i = 0; i < bytes.size(); i += ReadCodePoint(bytes, i).bytes) ++count;
  return count;
}

bool IsSpace(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
bool IsAlpha(char32_t c) {
  if (c < 0x80) return IsAsciiUpper(c) || IsAsciiLower(c);
  return InClass(c, iswalpha_l);
}
bool IsAlnum(char32_t c) {
  if (c < 0x80) return IsAlpha(c) || IsDigit(c);
  return InClass(c, iswalnum_l);
}
bool IsDigit(char32_t c) { return c >= '0' && c <= '9'; }
bool IsUpper(char32_t c) { return c < 0x80 ? IsAsciiUpper(c) : InClass(c, iswupper_l); }
bool IsLower(char32_t c) { return c < 0x80 ? IsAsciiLower(c) : InClass(c, iswlower_l); }
bool IsPrintable(char32_t c) {
  if (c < 0x80) return c >= 0x20 && c < 0x7F;
  // glibc prints format characters and private use, which Python escapes.
  const bool format = c == 0xAD || (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
                      (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB);
  const bool private_use = (c >= 0xE000 && c <= 0xF8FF) || c >= 0xE0000;
  return !IsSpace(c) && !format && !private_use && InClass(c, iswprint_l);
}

void AppendLower(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(IsAsciiUpper(c) ? c + 32 : c));
  } else if (c == 0x130) {
    out.append("i\u0307");  // the one letter whose lower case is two code points
  } else if (UnicodeLocale() != nullptr) {
    AppendUtf8(static_cast<char32_t>(towlower_l(static_cast<wint_t>(c), UnicodeLocale())), out);
  } else {
    AppendUtf8(c, out);
  }
}

void AppendUpper(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(IsAsciiLower(c) ? c - 32 : c));
  } else if (c == 0xDF) {
    out.append("SS");
  } else if (UnicodeLocale() != nullptr) {
    AppendUtf8(static_cast<char32_t>(towupper_l(static_cast<wint_t>(c), UnicodeLocale())), out);
  } else {
    AppendUtf8(c, out);
  }
}

void AppendTitle(std::string& out, char32_t c) {
  if (c == 0xDF) {
    out.append("Ss");
  } else {
    AppendUpper(out, c);
  }
}

bool HasOnlyCase(std::string_view bytes, bool (*wanted)(char32_t), bool (*other)(char32_t)) {
  bool found = false;
  for (size_t i = 0; i < bytes.size();) {
    const CodePoint c = ReadCodePoint(bytes, i);
    if (c.valid && other(c.value)) return false;
    found = found || (c.valid && wanted(c.value));
    i += c.bytes;
  }
  return found;
}

TextPtr Substring(Runtime& rt, const TextPtr& text, size_t begin, size_t end) {
  if (begin == 0 && end == text->size()) return text;
  TextBuilder out(rt);
  if (begin < end) out.Append(*text, begin, end);
  return out.Take();
}

TextPtr Lower(Runtime& rt, const Text& text) { return MapText(rt, text, AppendLower); }
TextPtr Upper(Runtime& rt, const Text& text) { return MapText(rt, text, AppendUpper); }

TextPtr Capitalize(Runtime& rt, const Text& text) {
  bool first = true;
  return MapText(rt, text, [&first](std::string& out, char32_t c) {
    first ? AppendTitle(out, c) : AppendLower(out, c);
    first = false;
  });
}

TextPtr Repeat(Runtime& rt, const Text& text, int64_t count) {
  TextBuilder out(rt);
  if (!text.empty()) {
    for (int64_t i = 0; i < count; ++i) out.Append(text);
  }
  return out.Take();
}

size_t FindBytes(std::string_view haystack, std::string_view needle, size_t from) {
  if (from > haystack.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  if (needle.size() == 1) return haystack.find(needle[0], from);
  // memmem is a two-way search in glibc; std::string_view::find is quadratic on hostile input.
  const void* hit =
      memmem(haystack.data() + from, haystack.size() - from, needle.data(), needle.size());
  if (hit == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(hit) - haystack.data());
}

TextPtr Replace(Runtime& rt, const TextPtr& text, const Text& from, const Text& to, int64_t count) {
  rt.Work(text->size());
  const std::string_view bytes = text->bytes();
  int64_t left = count < 0 ? INT64_MAX : count;
  TextBuilder out(rt);
  size_t at = 0;
  if (from.empty()) {
    // Python puts the replacement before every code point and at the end.
    while (left > 0) {
      --left;
      out.Append(to);
      if (at == bytes.size()) break;
      const size_t next = at + ReadCodePoint(bytes, at).bytes;
      out.Append(*text, at, next);
      at = next;
    }
  } else {
    for (; left > 0; --left) {
      const size_t hit = FindBytes(bytes, from.bytes(), at);
      if (hit == std::string_view::npos) break;
      out.Append(*text, at, hit);
      out.Append(to);
      at = hit + from.size();
    }
    if (at == 0) return text;
  }
  out.Append(*text, at, text->size());
  return out.Take();
}

TextPtr Strip(Runtime& rt, const TextPtr& text, const Text* chars, Side side) {
  std::vector<char32_t> set;
  if (chars != nullptr) {
    rt.Work(chars->size() * sizeof(char32_t));
    for (size_t i = 0; i < chars->size();) {
      const CodePoint c = ReadCodePoint(chars->bytes(), i);
      set.push_back(c.value);
      i += c.bytes;
    }
    std::sort(set.begin(), set.end());
  }
  const auto drop = [&](const CodePoint& c) {
    if (chars == nullptr) return c.valid && IsSpace(c.value);
    return std::binary_search(set.begin(), set.end(), c.value);
  };

  const std::string_view bytes = text->bytes();
  rt.Work(text->size());
  size_t begin = 0;
  size_t end = bytes.size();
  if (side != Side::kRight) {
    while (begin < end) {
      const CodePoint c = ReadCodePoint(bytes, begin);
      if (!drop(c)) break;
      begin += c.bytes;
    }
  }
  if (side != Side::kLeft) {
    while (begin < end) {
      size_t last = end - 1;
      while (last > begin && end - last < 4 && (bytes[last] & 0xC0) == 0x80) --last;
      CodePoint c = ReadCodePoint(bytes, last);
      if (last + c.bytes != end) {
        last = end - 1;
        c = ReadCodePoint(bytes, last);
      }
      if (!drop(c)) break;
      end = last;
    }
  }
  return Substring(rt, text, begin, end);
}

std::vector<Line> SplitLines(Runtime& rt, const Text& text) {
  const std::string_view bytes = text.bytes();
  rt.Work(bytes.size());
  std::vector<Line> lines;
  size_t begin = 0;
  for (size_t i = 0; i < bytes.size();) {
    const CodePoint c = ReadCodePoint(bytes, i);
    const bool breaks =
        c.valid && ((c.value >= 0x0A && c.value <= 0x0D) || (c.value >= 0x1C && c.value <= 0x1E) ||
                    c.value == 0x85 || c.value == 0x2028 || c.value == 0x2029);
    size_t next = i + c.bytes;
    if (breaks) {
      if (c.value == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      rt.Work(sizeof(Line));
      lines.push_back({begin, i, next});
      begin = next;
    }
    i = next;
  }
  if (begin < bytes.size()) lines.push_back({begin, bytes.size(), bytes.size()});
  return lines;
}

}  // namespace tandem::engine
