#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tandem::convert {

// Writes numbers and bytes front to back, for ByteReader.
class ByteWriter {
 public:
  void U8(uint8_t value) { bytes_ += static_cast<char>(value); }
  void U32(uint32_t value) { Little(value, 4); }
  void U64(uint64_t value) { Little(value, 8); }
  void U32Big(uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) U8(static_cast<uint8_t>(value >> shift));
  }
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) U8(static_cast<uint8_t>(value | 0x80));
    U8(static_cast<uint8_t>(value));
  }
  void Text(std::string_view text) { bytes_ += text; }

  const std::string& text() const { return bytes_; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  void Little(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) U8(static_cast<uint8_t>(value >> 8 * i));
  }

  std::string bytes_;
};

}  // namespace tandem::convert
