#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "engine/base/error.h"

namespace tandem::training {

// Reads little-endian numbers, varints and runs of bytes from memory. Throws kDataLoss that begins
// with `name` when the bytes end early.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string name)
      : bytes_(bytes), name_(std::move(name)) {}

  bool is_done() const { return bytes_.empty(); }
  std::span<const std::byte> rest() const { return bytes_; }

  std::span<const std::byte> Bytes(uint64_t n) {
    if (n > bytes_.size()) throw Error(ErrorCode::kDataLoss, name_ + ": the bytes end early");
    const auto taken = bytes_.first(static_cast<size_t>(n));
    bytes_ = bytes_.subspan(static_cast<size_t>(n));
    return taken;
  }

  uint8_t Byte() { return static_cast<uint8_t>(Bytes(1)[0]); }

  uint64_t Fixed(size_t n_bytes) {
    uint64_t value = 0;
    const auto bytes = Bytes(n_bytes);
    for (size_t i = 0; i < n_bytes; ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    return value;
  }

  uint64_t Varint() {
    constexpr int kMaxBits = 64;
    uint64_t value = 0;
    for (int shift = 0; shift < kMaxBits; shift += 7) {
      const uint8_t byte = Byte();
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    throw Error(ErrorCode::kDataLoss, name_ + ": a number has more than 64 bits");
  }

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
};

}  // namespace tandem::training
