#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "engine/formats/gguf/gguf.h"

// The bytes of values in a GGUF file. Internal to GgufFile.
namespace tandem::engine {

template <class T>
T LoadNumber(const std::byte* at) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

inline std::string_view GgufText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Minimum bytes that a value of the type takes in a file.
uint64_t LeastBytesOf(GgufFile::Type type);

}  // namespace tandem::engine
