#include "engine/tokenizer/files/base64.h"

#include <array>
#include <cstdint>

namespace tandem::engine {
namespace {

constexpr int8_t kForeign = -1;

std::array<int8_t, 256> MakeValues() {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int8_t, 256> values;
  values.fill(kForeign);
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
  }
  return values;
}

}  // namespace

std::optional<std::string> DecodeBase64(std::string_view text) {
  static const std::array<int8_t, 256> values = MakeValues();
  if (text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int n_bits = 0;
  for (const char c : text) {
    const int8_t value = values[static_cast<unsigned char>(c)];
    if (value == kForeign) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    n_bits += 6;
    if (n_bits < 8) continue;
    n_bits -= 8;
    bytes.push_back(static_cast<char>(bits >> n_bits));
    bits &= (1u << n_bits) - 1;
  }
  if (bits != 0 || n_bits >= 6) return std::nullopt;  // leftover bits beyond the last byte
  return bytes;
}

}  // namespace tandem::engine
