#include "server/wire/json_text.h"

#include <array>
#include <nlohmann/json.hpp>

#include "engine/base/utf8.h"

namespace tandem::server {
namespace {

// 0: no escape. Otherwise the character after the backslash, `u` for \u00XX.
constexpr std::array<char, 256> kEscapes = [] {
  std::array<char, 256> table{};
  for (size_t c = 0; c < 0x20; ++c) table[c] = 'u';
  table['\b'] = 'b';
  table['\f'] = 'f';
  table['\n'] = 'n';
  table['\r'] = 'r';
  table['\t'] = 't';
  table['"'] = '"';
  table['\\'] = '\\';
  return table;
}();

}  // namespace

void AppendJsonString(std::string& out, std::string_view text) {
  if (!IsValidUtf8(text)) {
    // Rare: the engine's text is valid, but file names may not be.
    out += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return;
  }
  out.push_back('"');
  size_t copied = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const char escape = kEscapes[byte];
    if (escape == 0) continue;
    out.append(text, copied, i - copied);
    copied = i + 1;
    out.push_back('\\');
    out.push_back(escape);
    if (escape == 'u') {
      static constexpr char kHex[] = "0123456789abcdef";
      out.append("00");
      out.push_back(kHex[byte >> 4]);
      out.push_back(kHex[byte & 15]);
    }
  }
  out.append(text, copied);
  out.push_back('"');
}

void AppendJsonNumber(std::string& out, double number) {
  char digits[32];
  const auto [end, fault] = std::to_chars(digits, digits + sizeof(digits), number);
  const std::string_view written(digits, static_cast<size_t>(end - digits));
  out += written;
  // A whole number keeps a fraction, so that readers parse it as floating point.
  if (written.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void AppendJsonInts(std::string& out, std::span<const TokenId> numbers) {
  out.push_back('[');
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out.push_back(',');
    AppendJsonInt(out, numbers[i]);
  }
  out.push_back(']');
}

void AppendJsonBytes(std::string& out, std::string_view bytes) {
  out.push_back('[');
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out.push_back(',');
    AppendJsonInt(out, static_cast<unsigned>(static_cast<unsigned char>(bytes[i])));
  }
  out.push_back(']');
}

}  // namespace tandem::server
