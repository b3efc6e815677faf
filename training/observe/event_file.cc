#include "training/observe/event_file.h"

#include <bit>
#include <cstring>
#include <span>

#include "engine/io/crc32c.h"

namespace tandem::training {
namespace {

static_assert(std::endian::native == std::endian::little);

// TFRecord stores rotated checksums, so that data that contains checksums can be checksummed.
uint32_t MaskedCrc(std::string_view bytes) {
  const uint32_t crc = engine::Crc32c(0, std::as_bytes(std::span(bytes)));
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

template <class T>
void PutRaw(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T GetRaw(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

void PutVarint(std::string* out, uint64_t value) {
  for (; value >= 128; value >>= 7) out->push_back(static_cast<char>(value | 128));
  out->push_back(static_cast<char>(value));
}

void PutTag(std::string* out, uint32_t field, Wire wire) { PutVarint(out, field << 3 | wire); }

void PutBytes(std::string* out, uint32_t field, std::string_view bytes) {
  PutTag(out, field, kLength);
  PutVarint(out, bytes.size());
  out->append(bytes);
}

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

struct Field {
  uint32_t number = 0;
  Wire wire = kVarint;
  uint64_t varint = 0;
  std::string_view bytes;  // for the other wire types
};

bool TakeField(std::string_view* from, Field* field) {
  uint64_t tag = 0;
  if (!TakeVarint(from, &tag)) return false;
  field->number = static_cast<uint32_t>(tag >> 3);
  field->wire = static_cast<Wire>(tag & 7);
  uint64_t size = 0;
  switch (field->wire) {
    case kVarint:
      return TakeVarint(from, &field->varint);
    case kFixed64:
      size = 8;
      break;
    case kFixed32:
      size = 4;
      break;
    case kLength:
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

// Summary.Value: tag = 1, simple_value = 2.
bool DecodeValue(std::string_view bytes, TensorBoardEvent* event) {
  std::pair<std::string, float> scalar;
  Field field;
  while (!bytes.empty()) {
    if (!TakeField(&bytes, &field)) return false;
    if (field.number == 1 && field.wire == kLength) scalar.first = field.bytes;
    if (field.number == 2 && field.wire == kFixed32) scalar.second = GetRaw<float>(field.bytes);
  }
  event->scalars.push_back(std::move(scalar));
  return true;
}

// Summary: value = 1, repeated.
bool DecodeSummary(std::string_view bytes, TensorBoardEvent* event) {
  Field field;
  while (!bytes.empty()) {
    if (!TakeField(&bytes, &field)) return false;
    if (field.number != 1 || field.wire != kLength) continue;
    if (!DecodeValue(field.bytes, event)) return false;
  }
  return true;
}

}  // namespace

// Event: wall_time = 1, step = 2, file_version = 3, summary = 5.
std::string EncodeEvent(const TensorBoardEvent& event) {
  std::string out;
  PutTag(&out, 1, kFixed64);
  PutRaw(&out, event.wall_time);
  PutTag(&out, 2, kVarint);
  PutVarint(&out, static_cast<uint64_t>(event.step));
  if (!event.file_version.empty()) PutBytes(&out, 3, event.file_version);
  std::string summary;
  for (const auto& [tag, value] : event.scalars) {
    std::string one;
    PutBytes(&one, 1, tag);
    PutTag(&one, 2, kFixed32);
    PutRaw(&one, value);
    PutBytes(&summary, 1, one);
  }
  if (!summary.empty()) PutBytes(&out, 5, summary);
  return out;
}

bool DecodeEvent(std::string_view bytes, TensorBoardEvent* event) {
  *event = {};
  Field field;
  while (!bytes.empty()) {
    if (!TakeField(&bytes, &field)) return false;
    if (field.number == 1 && field.wire == kFixed64) event->wall_time = GetRaw<double>(field.bytes);
    if (field.number == 2 && field.wire == kVarint) {
      event->step = static_cast<int64_t>(field.varint);
    }
    if (field.number == 3 && field.wire == kLength) event->file_version = field.bytes;
    if (field.number == 5 && field.wire == kLength && !DecodeSummary(field.bytes, event)) {
      return false;
    }
  }
  return true;
}

std::string FrameRecord(std::string_view payload) {
  std::string out;
  PutRaw(&out, static_cast<uint64_t>(payload.size()));
  PutRaw(&out, MaskedCrc(out));
  out.append(payload);
  PutRaw(&out, MaskedCrc(payload));
  return out;
}

bool TakeRecord(std::string_view* file, std::string_view* payload) {
  constexpr size_t kHead = 12;  // length and its checksum
  constexpr size_t kTail = 4;
  if (file->size() < kHead + kTail) return false;
  const auto size = GetRaw<uint64_t>(*file);
  if (GetRaw<uint32_t>(file->substr(8)) != MaskedCrc(file->substr(0, 8))) return false;
  if (size > file->size() - kHead - kTail) return false;
  const std::string_view found = file->substr(kHead, size);
  if (GetRaw<uint32_t>(file->substr(kHead + size)) != MaskedCrc(found)) return false;
  *payload = found;
  file->remove_prefix(kHead + size + kTail);
  return true;
}

}  // namespace tandem::training
