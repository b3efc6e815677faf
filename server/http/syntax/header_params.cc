#include "server/http/syntax/header_params.h"

#include <algorithm>
#include <cstdint>

#include "engine/base/ascii.h"
#include "engine/base/url.h"
#include "server/http/syntax/header_text.h"

namespace tandem::server {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t'; }

void SkipSpaces(std::string_view& text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
}

std::string TakeToken(std::string_view& text) {
  size_t n = 0;
  while (n < text.size() && IsTokenChar(text[n])) ++n;
  std::string token(text.substr(0, n));
  text.remove_prefix(n);
  return token;
}

// `text` starts after the opening quote. nullopt without a closing quote.
std::optional<std::string> TakeQuoted(std::string_view& text) {
  std::string value;
  for (size_t at = 0; at < text.size(); ++at) {
    const bool escapes =
        text[at] == '\\' && at + 1 < text.size() && (text[at + 1] == '"' || text[at + 1] == '\\');
    if (escapes) {
      value.push_back(text[++at]);
    } else if (text[at] == '"') {
      text.remove_prefix(at + 1);
      return value;
    } else {
      value.push_back(text[at]);
    }
  }
  return std::nullopt;
}

std::string TakeUnquoted(std::string_view& text) {
  const size_t n = std::min(text.find(';'), text.size());
  std::string_view value = text.substr(0, n);
  while (!value.empty() && IsSpace(value.back())) value.remove_suffix(1);
  text.remove_prefix(n);
  return std::string(value);
}

std::string FromLatin1(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x80) {
      out.push_back(c);
    } else {
      out.push_back(static_cast<char>(0xC0 | (byte >> 6)));
      out.push_back(static_cast<char>(0x80 | (byte & 0x3F)));
    }
  }
  return out;
}

// RFC 8187: charset'language'percent-encoded.
std::optional<std::string> DecodeExtended(std::string_view text) {
  const size_t charset_end = text.find('\'');
  if (charset_end == std::string_view::npos) return std::nullopt;
  const size_t language_end = text.find('\'', charset_end + 1);
  if (language_end == std::string_view::npos) return std::nullopt;
  const std::string charset = LowerCase(text.substr(0, charset_end));
  std::optional<std::string> bytes = PercentDecode(text.substr(language_end + 1));
  if (!bytes || charset == "utf-8") return bytes;
  if (charset == "iso-8859-1") return FromLatin1(*bytes);
  return std::nullopt;
}

}  // namespace

const std::string* HeaderParams::Find(std::string_view name) const {
  for (const auto& [key, text] : params) {
    if (key == name) return &text;
  }
  return nullptr;
}

std::optional<std::string> HeaderParams::FindExtended(std::string_view name) const {
  if (const std::string* extended = Find(std::string(name) + "*")) {
    if (std::optional<std::string> text = DecodeExtended(*extended)) return text;
  }
  const std::string* plain = Find(name);
  return plain == nullptr ? std::nullopt : std::optional<std::string>(*plain);
}

std::optional<HeaderParams> ParseHeaderParams(std::string_view text) {
  HeaderParams parsed;
  SkipSpaces(text);
  // The value, such as `multipart/form-data`, is not a token: it contains a slash.
  const size_t value_bytes = std::min(text.find(';'), text.size());
  std::string_view value = text.substr(0, value_bytes);
  while (!value.empty() && IsSpace(value.back())) value.remove_suffix(1);
  parsed.value = LowerCase(value);
  text.remove_prefix(value_bytes);
  while (!text.empty()) {
    if (text.front() != ';') return std::nullopt;
    text.remove_prefix(1);
    SkipSpaces(text);
    if (text.empty()) break;  // allows a trailing semicolon
    std::string name = LowerCase(TakeToken(text));
    SkipSpaces(text);
    if (name.empty() || text.empty() || text.front() != '=') return std::nullopt;
    text.remove_prefix(1);
    SkipSpaces(text);
    std::optional<std::string> param;
    if (!text.empty() && text.front() == '"') {
      text.remove_prefix(1);
      param = TakeQuoted(text);
      SkipSpaces(text);
    } else {
      param = TakeUnquoted(text);
    }
    if (!param || parsed.Find(name) != nullptr) return std::nullopt;
    parsed.params.emplace_back(std::move(name), std::move(*param));
  }
  return parsed;
}

}  // namespace tandem::server
