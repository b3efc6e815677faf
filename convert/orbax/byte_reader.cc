#include "convert/orbax/byte_reader.h"

#include "engine/base/error.h"

namespace tandem::convert {

void ByteReader::Broken(const std::string& why) const {
  throw Error(ErrorCode::kDataLoss, what_ + ": " + why + " at byte " + std::to_string(position_));
}

std::span<const std::byte> ByteReader::Bytes(uint64_t n) {
  if (n > left()) {
    Broken("needs " + std::to_string(n) + " bytes but only " + std::to_string(left()) + " remain,");
  }
  const auto part = bytes_.subspan(position_, static_cast<size_t>(n));
  position_ += static_cast<size_t>(n);
  return part;
}

std::string ByteReader::Text(uint64_t n) {
  const auto part = Bytes(n);
  return {reinterpret_cast<const char*>(part.data()), part.size()};
}

uint8_t ByteReader::U8() { return static_cast<uint8_t>(Bytes(1)[0]); }

uint32_t ByteReader::U32() {
  uint32_t value = 0;
  int shift = 0;
  for (const std::byte b : Bytes(4)) {
    value |= static_cast<uint32_t>(b) << shift;
    shift += 8;
  }
  return value;
}

uint32_t ByteReader::U32Big() {
  uint32_t value = 0;
  for (const std::byte b : Bytes(4)) value = value << 8 | static_cast<uint32_t>(b);
  return value;
}

uint64_t ByteReader::U64() {
  const uint64_t low = U32();
  return low | static_cast<uint64_t>(U32()) << 32;
}

uint64_t ByteReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t byte = U8();
    // The tenth byte has room for one bit only.
    if (shift == 63 && byte > 1) break;
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  Broken("an integer has more than 64 bits");
}

uint64_t ByteReader::VarintUpTo(uint64_t most, const char* name) {
  const uint64_t value = Varint();
  if (value > most) {
    Broken(std::string(name) + " is " + std::to_string(value) + ", more than the limit of " +
           std::to_string(most));
  }
  return value;
}

}  // namespace tandem::convert
