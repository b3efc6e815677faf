#include "training/data/parquet/thrift.h"

#include <limits>

namespace tandem::training {
namespace {

// Parquet's own structures nest eight deep (footer, row group, chunk, its metadata, statistics).
constexpr int kMaxThriftDepth = 32;

}  // namespace

void ThriftReader::Fail(const std::string& problem) const {
  place_.Broken("byte " + std::to_string(at_) + " of the " + std::string(what_) + ": " + problem);
}

void ThriftReader::Enter() {
  if (++depth_ > kMaxThriftDepth)
    Fail("nested more than " + std::to_string(kMaxThriftDepth) + " deep");
}

uint8_t ThriftReader::Byte() {
  if (left() == 0) Fail("it ends here");
  return std::to_integer<uint8_t>(bytes_[at_++]);
}

uint64_t ThriftReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    const uint8_t byte = Byte();
    if (shift == 63 && byte > 1) break;  // beyond 64 bits
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  Fail("a number of more than 64 bits");
}

int64_t ThriftReader::Zigzag() {
  const uint64_t value = Varint();
  return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

std::span<const std::byte> ThriftReader::Take(uint64_t n) {
  if (n > left()) {
    Fail(std::to_string(n) + " bytes are declared, " + std::to_string(left()) + " are left");
  }
  const auto part = bytes_.subspan(at_, static_cast<size_t>(n));
  at_ += part.size();
  return part;
}

ThriftType ThriftReader::TypeOf(uint8_t code) const {
  if (code < 1 || code > 13) Fail("type " + std::to_string(code) + " is unknown");
  return static_cast<ThriftType>(code);
}

bool ThriftReader::NextField(ThriftField& field) {
  const uint8_t head = Byte();
  if (head == 0) return false;
  field.type = TypeOf(head & 0x0F);
  const int64_t id = (head >> 4) != 0 ? field.id + (head >> 4) : Zigzag();
  if (id < 1 || id > std::numeric_limits<int16_t>::max()) Fail("a field has an invalid number");
  field.id = static_cast<int32_t>(id);
  return true;
}

void ThriftReader::Expect(ThriftField field, ThriftType type) const {
  if (field.type != type) {
    Fail("field " + std::to_string(field.id) + " is of type " +
         std::to_string(static_cast<int>(field.type)) + ", expected " +
         std::to_string(static_cast<int>(type)));
  }
}

bool ThriftReader::Bool(ThriftField field) const {
  if (field.type != ThriftType::kFalse) Expect(field, ThriftType::kTrue);
  return field.type == ThriftType::kTrue;
}

int32_t ThriftReader::I32(ThriftField field) {
  Expect(field, ThriftType::kI32);
  const int64_t value = Zigzag();
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    Fail("field " + std::to_string(field.id) + " has a number beyond 32 bits");
  }
  return static_cast<int32_t>(value);
}

int64_t ThriftReader::I64(ThriftField field) {
  Expect(field, ThriftType::kI64);
  return Zigzag();
}

std::string_view ThriftReader::Binary(ThriftField field) {
  Expect(field, ThriftType::kBinary);
  const auto bytes = Take(Varint());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint64_t ThriftReader::ListHeader(ThriftType& type) {
  const uint8_t head = Byte();
  type = TypeOf(head & 0x0F);
  const uint64_t count = (head >> 4) == 15 ? Varint() : head >> 4;
  // Every item takes at least a byte.
  if (count > left()) {
    Fail("a list of " + std::to_string(count) + " items with " + std::to_string(left()) +
         " bytes left");
  }
  return count;
}

void ThriftReader::SkipMap() {
  const uint64_t count = Varint();
  if (count == 0) return;
  const uint8_t types = Byte();
  if (count > left()) Fail("a map has more items than the input has bytes");
  const ThriftType key = TypeOf(types >> 4);
  const ThriftType value = TypeOf(types & 0x0F);
  for (uint64_t i = 0; i < count; ++i) {
    Skip(key, /*in_container=*/true);
    Skip(value, /*in_container=*/true);
  }
}

void ThriftReader::Skip(ThriftType type, bool in_container) {
  switch (type) {
    case ThriftType::kTrue:
    case ThriftType::kFalse:
      // A boolean field is encoded in its type; an item takes a byte.
      if (in_container) Take(1);
      return;
    case ThriftType::kByte:
      Take(1);
      return;
    case ThriftType::kI16:
    case ThriftType::kI32:
    case ThriftType::kI64:
      Varint();
      return;
    case ThriftType::kDouble:
      Take(8);
      return;
    case ThriftType::kBinary:
      Take(Varint());
      return;
    case ThriftType::kUuid:
      Take(16);
      return;
    case ThriftType::kList:
    case ThriftType::kSet: {
      Enter();
      ThriftType item = type;
      for (uint64_t left = ListHeader(item); left > 0; --left) Skip(item, /*in_container=*/true);
      --depth_;
      return;
    }
    case ThriftType::kMap:
      Enter();
      SkipMap();
      --depth_;
      return;
    case ThriftType::kStruct:
      Struct([](ThriftField) { return false; });
      return;
  }
}

}  // namespace tandem::training
