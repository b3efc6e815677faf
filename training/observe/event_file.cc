#include "training/observe/event_file.h"

#include <span>

#include "engine/io/crc32c.h"
#include "training/observe/protobuf.h"

namespace tandem::training {
namespace {

// TFRecord stores rotated checksums, so that data that contains checksums can be checksummed.
uint32_t MaskedCrc(std::string_view bytes) {
  const uint32_t crc = engine::Crc32c(0, std::as_bytes(std::span(bytes)));
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

// Summary.Value: tag = 1, simple_value = 2.
bool DecodeValue(std::string_view bytes, TensorBoardEvent* event) {
  std::pair<std::string, float> scalar;
  WireField field;
  while (!bytes.empty()) {
    if (!TakeField(&bytes, &field)) return false;
    if (field.number == 1 && field.wire == WireType::kLength) scalar.first = field.bytes;
    if (field.number == 2 && field.wire == WireType::kFixed32)
      scalar.second = GetRaw<float>(field.bytes);
  }
  event->scalars.push_back(std::move(scalar));
  return true;
}

// Summary: value = 1, repeated.
bool DecodeSummary(std::string_view bytes, TensorBoardEvent* event) {
  WireField field;
  while (!bytes.empty()) {
    if (!TakeField(&bytes, &field)) return false;
    if (field.number != 1 || field.wire != WireType::kLength) continue;
    if (!DecodeValue(field.bytes, event)) return false;
  }
  return true;
}

}  // namespace

// Event: wall_time = 1, step = 2, file_version = 3, summary = 5.
std::string EncodeEvent(const TensorBoardEvent& event) {
  std::string out;
  PutTag(&out, 1, WireType::kFixed64);
  PutRaw(&out, event.wall_time);
  PutTag(&out, 2, WireType::kVarint);
  PutVarint(&out, static_cast<uint64_t>(event.step));
  if (!event.file_version.empty()) PutBytes(&out, 3, event.file_version);
  std::string summary;
  for (const auto& [tag, value] : event.scalars) {
    std::string one;
    PutBytes(&one, 1, tag);
    PutTag(&one, 2, WireType::kFixed32);
    PutRaw(&one, value);
    PutBytes(&summary, 1, one);
  }
  if (!summary.empty()) PutBytes(&out, 5, summary);
  return out;
}

bool DecodeEvent(std::string_view bytes, TensorBoardEvent* event) {
  *event = {};
  WireField field;
  while (!bytes.empty()) {
    if (!TakeField(&bytes, &field)) return false;
    if (field.number == 1 && field.wire == WireType::kFixed64)
      event->wall_time = GetRaw<double>(field.bytes);
    if (field.number == 2 && field.wire == WireType::kVarint) {
      event->step = static_cast<int64_t>(field.varint);
    }
    if (field.number == 3 && field.wire == WireType::kLength) event->file_version = field.bytes;
    if (field.number == 5 && field.wire == WireType::kLength &&
        !DecodeSummary(field.bytes, event)) {
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
