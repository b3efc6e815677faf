#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace tandem::convert {

// Reads numbers and bytes front to back, and checks every length against the bytes left. Throws
// kDataLoss: "<what>: … at byte N". The bytes must outlive the reader.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string what)
      : bytes_(bytes), what_(std::move(what)) {}

  uint8_t U8();
  uint32_t U32();     // little-endian, like the others
  uint32_t U32Big();  // big-endian
  uint64_t U64();
  uint64_t Varint();  // LEB128
  // At most `most`; `name` describes the number in messages.
  uint64_t VarintUpTo(uint64_t most, const char* name);
  std::span<const std::byte> Bytes(uint64_t n);
  std::string Text(uint64_t n);

  size_t position() const { return position_; }
  size_t left() const { return bytes_.size() - position_; }
  [[noreturn]] void Broken(const std::string& why) const;

 private:
  std::span<const std::byte> bytes_;
  std::string what_;
  size_t position_ = 0;
};

}  // namespace tandem::convert
