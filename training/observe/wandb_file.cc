#include "training/observe/wandb_file.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>

#include "training/observe/protobuf.h"

namespace tandem::training {
namespace {

constexpr size_t kBlockBytes = 32768;
constexpr size_t kPartHead = 7;  // checksum, length, kind

enum PartKind : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

uint32_t PartChecksum(PartKind kind, std::string_view data) {
  const auto byte = static_cast<Bytef>(kind);
  const uLong of_kind = crc32(0, &byte, 1);
  return static_cast<uint32_t>(
      crc32(of_kind, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())));
}

void PutPart(std::string* out, PartKind kind, std::string_view data) {
  PutRaw(out, PartChecksum(kind, data));
  PutRaw(out, static_cast<uint16_t>(data.size()));
  PutRaw(out, kind);
  out->append(data);
}

struct Part {
  PartKind kind = kFull;
  std::string_view data;
};

bool TakePart(std::string_view file, size_t* at, Part* part) {
  const size_t room = kBlockBytes - *at % kBlockBytes;
  if (room < kPartHead) *at += room;
  if (*at > file.size() || file.size() - *at < kPartHead) return false;
  const std::string_view head = file.substr(*at, kPartHead);
  const auto size = GetRaw<uint16_t>(head.substr(4));
  part->kind = GetRaw<PartKind>(head.substr(6));
  if (part->kind < kFull || part->kind > kLast) return false;
  if (size > file.size() - *at - kPartHead) return false;
  part->data = file.substr(*at + kPartHead, size);
  if (GetRaw<uint32_t>(head) != PartChecksum(part->kind, part->data)) return false;
  *at += kPartHead + size;
  return true;
}

// Record: num = 1, and one of the messages below.
enum RecordField : uint32_t { kHistory = 2, kSummary = 3, kRun = 17, kExit = 18 };

std::string Record(int64_t number, RecordField field, std::string_view message) {
  std::string out;
  PutNumber(&out, 1, static_cast<uint64_t>(number));
  PutBytes(&out, field, message);
  return out;
}

// HistoryItem, ConfigItem and SummaryItem: key = 1, value_json = 16.
void PutItems(std::string* out, uint32_t field, const WandbItems& items) {
  for (const auto& [key, json] : items) {
    std::string one;
    PutBytes(&one, 1, key);
    PutBytes(&one, 16, json);
    PutBytes(out, field, one);
  }
}

bool TakeItem(std::string_view bytes, WandbItems* items) {
  std::pair<std::string, std::string> item;
  WireField field;
  while (!bytes.empty()) {
    if (!TakeField(&bytes, &field)) return false;
    if (field.wire != WireType::kLength) continue;
    if (field.number == 1) item.first = field.bytes;
    if (field.number == 16) item.second = field.bytes;
  }
  items->push_back(std::move(item));
  return true;
}

// HistoryRecord: item = 1, repeated; step = 2, a message with num = 1.
bool DecodeHistory(std::string_view bytes, WandbHistory* history) {
  WireField field;
  while (!bytes.empty()) {
    if (!TakeField(&bytes, &field)) return false;
    if (field.wire != WireType::kLength) continue;
    if (field.number == 1 && !TakeItem(field.bytes, &history->items)) return false;
    if (field.number != 2) continue;
    std::string_view step = field.bytes;
    WireField number;
    while (!step.empty()) {
      if (!TakeField(&step, &number)) return false;
      if (number.number == 1) history->step = static_cast<int64_t>(number.varint);
    }
  }
  return true;
}

}  // namespace

std::string WandbHeader() {
  std::string out = ":W&B";
  PutRaw(&out, uint16_t{0xBEE1});
  PutRaw(&out, uint8_t{0});  // version
  return out;
}

std::string FrameWandbRecord(std::string_view payload, size_t file_bytes) {
  std::string out;
  const size_t left = kBlockBytes - file_bytes % kBlockBytes;
  if (left < kPartHead) out.assign(left, '\0');
  for (bool is_first = true;; is_first = false) {
    const size_t room = kBlockBytes - (file_bytes + out.size()) % kBlockBytes - kPartHead;
    const bool is_last = payload.size() <= room;
    const PartKind kind = is_first ? (is_last ? kFull : kFirst) : (is_last ? kLast : kMiddle);
    PutPart(&out, kind, payload.substr(0, room));
    if (is_last) return out;
    payload.remove_prefix(room);
  }
}

bool TakeWandbRecord(std::string_view file, size_t* at, std::string* payload) {
  size_t next = *at;
  Part part;
  if (!TakePart(file, &next, &part)) return false;
  if (part.kind != kFull && part.kind != kFirst) return false;
  payload->assign(part.data);
  while (part.kind != kFull && part.kind != kLast) {
    if (!TakePart(file, &next, &part)) return false;
    if (part.kind != kMiddle && part.kind != kLast) return false;
    payload->append(part.data);
  }
  *at = next;
  return true;
}

// RunRecord: run_id = 1, project = 3, config = 4 (update = 1, repeated), display_name = 8,
// start_time = 17 (seconds = 1, nanos = 2).
std::string EncodeWandbRun(const WandbRun& run, int64_t number) {
  std::string config;
  PutItems(&config, 1, run.config);
  const double whole = std::floor(run.started_unix);
  std::string start;
  PutNumber(&start, 1, static_cast<uint64_t>(whole));
  PutNumber(&start, 2, static_cast<uint64_t>((run.started_unix - whole) * 1e9));
  std::string message;
  PutBytes(&message, 1, run.id);
  PutBytes(&message, 3, run.project);
  PutBytes(&message, 4, config);
  PutBytes(&message, 8, run.name);
  PutBytes(&message, 17, start);
  return Record(number, kRun, message);
}

std::string EncodeWandbHistory(const WandbHistory& history, int64_t number) {
  std::string step;
  PutNumber(&step, 1, static_cast<uint64_t>(history.step));
  std::string message;
  PutItems(&message, 1, history.items);
  PutBytes(&message, 2, step);
  return Record(number, kHistory, message);
}

// SummaryRecord: update = 1, repeated.
std::string EncodeWandbSummary(const WandbItems& items, int64_t number) {
  std::string message;
  PutItems(&message, 1, items);
  return Record(number, kSummary, message);
}

// RunExitRecord: exit_code = 1.
std::string EncodeWandbExit(int exit_code, int64_t number) {
  std::string message;
  PutNumber(&message, 1, static_cast<uint64_t>(exit_code));
  return Record(number, kExit, message);
}

bool DecodeWandbHistory(std::string_view record, WandbHistory* history) {
  *history = {};
  WireField field;
  while (!record.empty()) {
    if (!TakeField(&record, &field)) return false;
    if (field.number != kHistory || field.wire != WireType::kLength) continue;
    return DecodeHistory(field.bytes, history);
  }
  return false;
}

}  // namespace tandem::training
