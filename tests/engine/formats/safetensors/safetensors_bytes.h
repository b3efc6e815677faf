#pragma once

// Bytes of safetensors files, assembled by hand.

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem::engine {

inline std::string LengthField(uint64_t length) {
  std::string field(8, '\0');
  for (size_t i = 0; i < 8; ++i) field[i] = static_cast<char>(length >> (8 * i));
  return field;
}

inline std::string FileOf(const std::string& header, const std::string& data) {
  return LengthField(header.size()) + header + data;
}

}  // namespace tandem::engine
