#include "training/observe/protobuf.h"

namespace tandem::training {
namespace {

bool TakeVarint(std::string_view* from, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (from->empty()) return false;
    const auto byte = static_cast<uint8_t>(from->front());
    from->remove_prefix(1);
    *value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) return true;
  }
  return false;
}

}  // namespace

void PutVarint(std::string* out, uint64_t value) {
  for (; value >= 128; value >>= 7) out->push_back(static_cast<char>(value | 128));
  out->push_back(static_cast<char>(value));
}

void PutTag(std::string* out, uint32_t field, WireType wire) {
  PutVarint(out, field << 3 | static_cast<uint32_t>(wire));
}

void PutBytes(std::string* out, uint32_t field, std::string_view bytes) {
  PutTag(out, field, WireType::kLength);
  PutVarint(out, bytes.size());
  out->append(bytes);
}

void PutNumber(std::string* out, uint32_t field, uint64_t value) {
  PutTag(out, field, WireType::kVarint);
  PutVarint(out, value);
}

bool TakeField(std::string_view* from, WireField* field) {
  uint64_t tag = 0;
  if (!TakeVarint(from, &tag)) return false;
  field->number = static_cast<uint32_t>(tag >> 3);
  field->wire = static_cast<WireType>(tag & 7);
  uint64_t size = 0;
  switch (field->wire) {
    case WireType::kVarint:
      return TakeVarint(from, &field->varint);
    case WireType::kFixed64:
      size = 8;
      break;
    case WireType::kFixed32:
      size = 4;
      break;
    case WireType::kLength:
      if (!TakeVarint(from, &size)) return false;
      break;
    default:
      return false;
  }
  if (size > from->size()) return false;
  field->bytes = from->substr(0, size);
  from->remove_prefix(size);
  return true;
}

}  // namespace tandem::training
