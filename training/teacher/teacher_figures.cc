#include "training/teacher/teacher_figures.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/io/crc32c.h"
#include "engine/io/json.h"

namespace tandem::training {
namespace {

using nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little);

constexpr int64_t kFiguresVersion = 1;
constexpr const char* kFiguresFormat = "tandem-teacher";
constexpr size_t kMaxFiguresHeader = 8192;
constexpr int64_t kMaxTopK = 1 << 20;

// Bytes of the payload; checksum of is_end and the payload.
struct FrameHead {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
  uint32_t is_end = 0;
};
// Before the ids and log-probabilities of a sample.
struct SampleHead {
  int64_t sample = 0;
  int64_t n_values = 0;  // learned tokens times top_k
};

uint32_t ChecksumOf(uint32_t is_end, std::span<const std::byte> payload) {
  return engine::Crc32c(engine::Crc32c(0, std::as_bytes(std::span(&is_end, 1))), payload);
}

template <class T>
void PutRaw(std::string* out, const T* values, size_t n) {
  out->append(reinterpret_cast<const char*>(values), n * sizeof(T));
}

template <class T>
T GetRaw(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::string Framed(const std::string& payload, bool is_end) {
  FrameHead head{payload.size(), 0, is_end ? 1U : 0U};
  head.crc32c = ChecksumOf(head.is_end, std::as_bytes(std::span(payload.data(), payload.size())));
  std::string out;
  PutRaw(&out, &head, 1);
  return out + payload;
}

}  // namespace

std::string EncodeTeacherHeader(const TeacherHeader& header) {
  return ordered_json{{"format", kFiguresFormat},
                      {"version", kFiguresVersion},
                      {"teacher", header.teacher},
                      {"samples", header.samples},
                      {"top_k", header.top_k}}
             .dump(-1, ' ', false, ordered_json::error_handler_t::replace) +
         "\n";
}

std::string EncodeTeacherFrame(std::span<const ScoredSample> samples,
                               const std::string& fingerprint) {
  std::string payload;
  const uint64_t n_text = fingerprint.size();
  PutRaw(&payload, &n_text, 1);
  payload += fingerprint;
  for (const ScoredSample& one : samples) {
    TANDEM_CHECK(one.ids.size() == one.logprobs.size());
    const SampleHead head{one.sample, static_cast<int64_t>(one.ids.size())};
    PutRaw(&payload, &head, 1);
    PutRaw(&payload, one.ids.data(), one.ids.size());
    PutRaw(&payload, one.logprobs.data(), one.logprobs.size());
  }
  return Framed(payload, false);
}

std::string EncodeTeacherEnd() { return Framed("", true); }

TeacherFigures::TeacherFigures(std::shared_ptr<const void> owner, std::span<const std::byte> bytes,
                               const std::string& source)
    : owner_(std::move(owner)), bytes_(bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t end = text.substr(0, kMaxFiguresHeader).find('\n');
  if (end == std::string_view::npos) {
    throw Error(ErrorCode::kDataLoss, source + ": has no header");
  }
  const ordered_json header = engine::ParseUntrustedJson(text.substr(0, end), source);
  if (!header.is_object() || engine::JsonStringOr(header, "format", "", source) != kFiguresFormat ||
      engine::JsonInt(header, "version", 0, INT64_MAX, source) != kFiguresVersion) {
    throw Error(ErrorCode::kDataLoss,
                source + ": is no file of a teacher's figures, or a newer one");
  }
  header_.teacher = engine::JsonStringOr(header, "teacher", "", source);
  header_.samples = engine::JsonStringOr(header, "samples", "", source);
  header_.top_k = engine::JsonInt(header, "top_k", 1, kMaxTopK, source);
  whole_bytes_ = end + 1;
  while (!is_complete_ && ReadFrame()) {
  }
}

bool TeacherFigures::ReadFrame() {
  if (bytes_.size() - whole_bytes_ < sizeof(FrameHead)) return false;
  const auto head = GetRaw<FrameHead>(bytes_, whole_bytes_);
  const size_t begin = whole_bytes_ + sizeof(FrameHead);
  if (head.bytes > bytes_.size() - begin) return false;
  if (ChecksumOf(head.is_end, bytes_.subspan(begin, head.bytes)) != head.crc32c) return false;
  if (head.is_end != 0) {
    is_complete_ = true;
  } else if (!ReadSamples(begin, begin + head.bytes)) {
    return false;
  }
  whole_bytes_ = begin + head.bytes;
  return true;
}

bool TeacherFigures::ReadSamples(size_t begin, size_t end) {
  if (end - begin < sizeof(uint64_t)) return false;
  const auto n_text = GetRaw<uint64_t>(bytes_, begin);
  begin += sizeof(uint64_t);
  if (n_text > end - begin) return false;
  const std::string fingerprint(reinterpret_cast<const char*>(bytes_.data() + begin), n_text);
  begin += n_text;
  const auto k = static_cast<uint64_t>(header_.top_k);
  std::map<int64_t, Place> found;
  while (begin < end) {
    if (end - begin < sizeof(SampleHead)) return false;
    const auto head = GetRaw<SampleHead>(bytes_, begin);
    begin += sizeof(SampleHead);
    constexpr uint64_t kEach = sizeof(TokenId) + sizeof(float);
    const auto n = static_cast<uint64_t>(head.n_values);
    if (head.n_values <= 0 || n % k != 0 || n > (end - begin) / kEach) return false;
    found[head.sample] = {begin, static_cast<int64_t>(n / k)};
    begin += n * kEach;
  }
  places_.merge(found);
  if (!fingerprint.empty()) fingerprint_ = fingerprint;
  return true;
}

int64_t TeacherFigures::TokensOf(int64_t sample) const {
  const auto place = places_.find(sample);
  return place == places_.end() ? -1 : place->second.n_tokens;
}

void TeacherFigures::Copy(int64_t sample, int64_t token, TokenId* ids, float* logprobs) const {
  const Place& place = places_.at(sample);
  TANDEM_CHECK(token >= 0 && token < place.n_tokens);
  const auto k = static_cast<size_t>(header_.top_k);
  const size_t at = static_cast<size_t>(token) * k;
  const size_t n = static_cast<size_t>(place.n_tokens) * k;
  std::memcpy(ids, bytes_.data() + place.offset + at * sizeof(TokenId), k * sizeof(TokenId));
  std::memcpy(logprobs, bytes_.data() + place.offset + n * sizeof(TokenId) + at * sizeof(float),
              k * sizeof(float));
}

}  // namespace tandem::training
