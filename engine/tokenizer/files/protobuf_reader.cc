#include "engine/tokenizer/files/protobuf_reader.h"

#include <cstring>

#include "engine/tokenizer/files/file_errors.h"

namespace tandem::engine {

void ProtobufReader::Fail(const std::string& what) const {
  ThrowBroken(*file_, "byte " + std::to_string(left_.data() - begin_) + " of " + where_, what);
}

uint64_t ProtobufReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (left_.empty()) Fail("ends inside a number");
    const auto byte = static_cast<unsigned char>(left_.front());
    left_.remove_prefix(1);
    if (shift == 63 && byte > 1) break;  // beyond 64 bits
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  Fail("contains an integer of more than 64 bits");
}

uint64_t ProtobufReader::Fixed(size_t bytes) {
  if (left_.size() < bytes) Fail("ends inside a number");
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(left_[i])) << (8 * i);
  }
  left_.remove_prefix(bytes);
  return value;
}

std::optional<ProtobufReader::Field> ProtobufReader::Next() {
  if (left_.empty()) return std::nullopt;
  const uint64_t tag = Varint();
  const uint64_t number = tag >> 3;
  if (number == 0 || number > 0x1FFFFFFF) Fail("contains an invalid field number");
  Field field{static_cast<uint32_t>(number), 0, {}, false, false};
  switch (tag & 7) {
    case 0:
      field.integer = Varint();
      return field;
    case 1:
      field.integer = Fixed(8);
      return field;
    case 2: {
      const uint64_t size = Varint();
      if (size > left_.size()) {
        Fail("contains a field of " + std::to_string(size) + " bytes, but only " +
             std::to_string(left_.size()) + " bytes remain");
      }
      field.is_bytes = true;
      field.bytes = left_.substr(0, static_cast<size_t>(size));
      left_.remove_prefix(static_cast<size_t>(size));
      return field;
    }
    case 5:
      field.is_fixed32 = true;
      field.integer = Fixed(4);
      return field;
    default:
      Fail("contains a field of an unsupported wire type");
  }
}

int32_t ProtobufReader::Int32(const Field& field) const {
  if (field.is_bytes || field.is_fixed32) {
    Fail("must hold an integer in field " + std::to_string(field.number));
  }
  // Protobuf writes negative numbers with 64 bits.
  const auto value = static_cast<int64_t>(field.integer);
  if (value < INT32_MIN || value > INT32_MAX) {
    Fail("contains " + std::to_string(value) + " in field " + std::to_string(field.number) +
         ", which does not fit in 32 bits");
  }
  return static_cast<int32_t>(value);
}

bool ProtobufReader::Bool(const Field& field) const { return Int32(field) != 0; }

float ProtobufReader::Float(const Field& field) const {
  if (!field.is_fixed32) Fail("must hold a float in field " + std::to_string(field.number));
  const auto bits = static_cast<uint32_t>(field.integer);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

std::string_view ProtobufReader::Bytes(const Field& field) const {
  if (!field.is_bytes) Fail("must hold bytes in field " + std::to_string(field.number));
  return field.bytes;
}

}  // namespace tandem::engine
