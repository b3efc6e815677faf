#include "engine/formats/safetensors/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/quoted.h"
#include "engine/formats/safetensors/safetensors_codes.h"
#include "engine/io/json_events.h"

namespace tandem::engine {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxRank = 32;
// Limit for one file. Whole models of experts have a few hundred thousand tensors over all shards.
constexpr size_t kMaxHeaderTensors = size_t{1} << 18;
constexpr const char* kMetadataName = "__metadata__";

// One tensor as the header describes it, before any check.
struct Entry {
  std::string name;
  std::optional<DType> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<int64_t>> offsets;  // begin, end, from the start of the data
};

// Reads the header without building a tree: a header may be 100 MiB, and its tree takes many times
// that. The nesting is fixed: header > tensor > shape or data_offsets.
class HeaderReader : public JsonHandler {
 public:
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  void StartObject() override {
    if (place_ == Place::kStart) {
      place_ = Place::kHeader;
    } else if (place_ == Place::kHeader && name_ == kMetadataName) {
      if (has_metadata_) Fail("duplicate name '__metadata__'");
      has_metadata_ = true;
      place_ = Place::kMetadata;
    } else if (place_ == Place::kHeader) {
      if (entries.size() == kMaxHeaderTensors) {
        Fail("more than " + std::to_string(kMaxHeaderTensors) + " tensors");
      }
      if (!names_.insert(name_).second) Fail("duplicate name " + Quoted(name_));
      entries.push_back({.name = name_, .dtype = {}, .shape = {}, .offsets = {}});
      place_ = Place::kTensor;
    } else {
      FailHere("unexpected object");
    }
  }

  void EndObject() override {
    if (place_ == Place::kTensor) {
      const Entry& entry = entries.back();
      if (!entry.dtype) FailHere("missing dtype");
      if (!entry.shape) FailHere("missing shape");
      if (!entry.offsets) FailHere("missing data_offsets");
      if (entry.offsets->size() != 2) FailHere("data_offsets must have two numbers");
      place_ = Place::kHeader;
    } else {
      place_ = place_ == Place::kMetadata ? Place::kHeader : Place::kStart;
    }
  }

  void Key(std::string& name) override {
    (place_ == Place::kHeader ? name_ : field_) = std::move(name);
    if (place_ == Place::kTensor && field_ != "dtype" && field_ != "shape" &&
        field_ != "data_offsets") {
      FailHere("unknown field " + Quoted(field_));
    }
  }

  void String(std::string& value) override {
    if (place_ == Place::kMetadata) {
      if (!metadata.emplace(field_, std::move(value)).second) {
        Fail("duplicate name " + Quoted(field_) + " in __metadata__");
      }
      return;
    }
    if (place_ != Place::kTensor || field_ != "dtype") FailHere("unexpected string");
    Entry& entry = entries.back();
    if (entry.dtype) FailHere("duplicate dtype");
    for (const DTypeCode& known : kDTypeCodes) {
      if (value == known.code) entry.dtype = known.dtype;
    }
    if (!entry.dtype) FailHere("unsupported dtype " + Quoted(value), ErrorCode::kUnsupported);
  }

  void StartArray() override {
    if (place_ != Place::kTensor || field_ == "dtype") FailHere("unexpected array");
    auto& numbers = Numbers();
    if (numbers) FailHere("duplicate " + field_);
    numbers.emplace();
    place_ = Place::kNumbers;
  }
  void EndArray() override { place_ = Place::kTensor; }

  void Unsigned(uint64_t value) override {
    if (place_ != Place::kNumbers) FailHere("unexpected number");
    if (!std::in_range<int64_t>(value)) {
      FailHere(field_ + " out of range: " + std::to_string(value));
    }
    auto& numbers = *Numbers();
    if (numbers.size() == kMaxRank) FailHere(field_ + " has more than 32 numbers");
    numbers.push_back(static_cast<int64_t>(value));
  }
  void Integer(int64_t value) override {
    FailHere("negative number " + std::to_string(value) + " in " + field_);
  }
  void Float(double) override { FailHere("number that is not an integer in " + field_); }
  void Bool(bool) override { FailHere("unexpected boolean"); }
  void Null() override { FailHere("unexpected null"); }

 private:
  enum class Place { kStart, kHeader, kMetadata, kTensor, kNumbers };

  std::optional<std::vector<int64_t>>& Numbers() {
    return field_ == "shape" ? entries.back().shape : entries.back().offsets;
  }

  [[noreturn]] void FailHere(const std::string& what, ErrorCode code = ErrorCode::kDataLoss) const {
    switch (place_) {
      case Place::kStart:
        Fail("the header must be a JSON object: " + what, code);
      case Place::kHeader:
        Fail("value of " + Quoted(name_) + " must be an object: " + what, code);
      case Place::kMetadata:
        Fail("__metadata__ field " + Quoted(field_) + " must be a string: " + what, code);
      case Place::kTensor:
      case Place::kNumbers:
        Fail("tensor " + Quoted(name_) + ": " + what, code);
    }
    TANDEM_CHECK(false);
  }

  Place place_ = Place::kStart;
  bool has_metadata_ = false;
  std::string name_;   // of the header's current entry
  std::string field_;  // of that entry's current field
  std::unordered_set<std::string> names_;
};

struct SplitHeader {
  std::string_view text;
  std::span<const std::byte> data;
};

// Splits the file after checking the declared header length against the file and the limit.
SplitHeader SplitFile(std::span<const std::byte> bytes, const std::string& source) {
  const auto fail = [&](const std::string& what) -> SplitHeader {
    throw Error(ErrorCode::kDataLoss, source + ": " + what);
  };
  if (bytes.size() < kLengthBytes) {
    return fail("file of " + std::to_string(bytes.size()) +
                " bytes is too short for a safetensors header length");
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  }
  if (length > bytes.size() - kLengthBytes) {
    return fail("header length " + std::to_string(length) + " exceeds the file of " +
                std::to_string(bytes.size()) + " bytes");
  }
  if (length > static_cast<uint64_t>(SafetensorsFile::kMaxHeaderBytes)) {
    return fail("header length " + std::to_string(length) + " exceeds the limit of " +
                std::to_string(SafetensorsFile::kMaxHeaderBytes));
  }
  const auto header = bytes.subspan(kLengthBytes, static_cast<size_t>(length));
  if (header.empty() || header[0] != std::byte{'{'}) return fail("header does not begin with '{'");
  return {{reinterpret_cast<const char*>(header.data()), header.size()},
          bytes.subspan(kLengthBytes + header.size())};
}

// Bytes of dtype x shape; nullopt when they do not fit an int64.
std::optional<int64_t> TensorBytes(DType dtype, std::span<const int64_t> shape) {
  auto bytes = static_cast<int64_t>(DTypeBytes(dtype));
  bool is_empty = false;
  // Axes of 0 do not enter the product: [0, 2^62, 8] has no bytes, but its rows overflow.
  for (const int64_t dim : shape) {
    is_empty = is_empty || dim == 0;
    if (dim != 0 && __builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  }
  return is_empty ? 0 : bytes;
}

}  // namespace

SafetensorsFile SafetensorsFile::Open(const std::filesystem::path& path) {
  std::shared_ptr<const MappedFile> file = MappedFile::Open(path);
  SafetensorsFile out = FromBytes(file->bytes(), path.string());
  out.file_ = std::move(file);
  return out;
}

SafetensorsFile SafetensorsFile::FromBytes(std::span<const std::byte> bytes,
                                           const std::string& name) {
  const SplitHeader header = SplitFile(bytes, name);
  HeaderReader reader;
  // A tensor's numbers are on the third level. The parser refuses deeper nesting before the first
  // event.
  ParseJsonEvents(header.text, name + " header", 3, reader);

  const auto fail = [&](const Entry& entry, const std::string& what) {
    throw Error(ErrorCode::kDataLoss, name + ": tensor " + Quoted(entry.name) + ": " + what);
  };
  const auto data_bytes = static_cast<int64_t>(header.data.size());

  // Each tensor alone: its offsets lie in the file and agree with dtype and shape.
  for (const Entry& entry : reader.entries) {
    const int64_t begin = (*entry.offsets)[0];
    const int64_t end = (*entry.offsets)[1];
    const std::string offsets =
        "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "]";
    if (begin > end) fail(entry, offsets + " run backwards");
    if (end > data_bytes) {
      fail(entry, offsets + " exceed the data of " + std::to_string(data_bytes) + " bytes");
    }
    const std::optional<int64_t> needed = TensorBytes(*entry.dtype, *entry.shape);
    if (!needed) fail(entry, "shape overflows");
    if (*needed != end - begin) {
      fail(entry,
           offsets + " do not match the " + std::to_string(*needed) + " bytes of dtype and shape");
    }
  }

  // All tensors together: they tile the data without overlap or hole.
  std::vector<std::tuple<int64_t, int64_t, size_t>> order;  // begin, end, index in the header
  order.reserve(reader.entries.size());
  for (const Entry& entry : reader.entries) {
    order.emplace_back((*entry.offsets)[0], (*entry.offsets)[1], order.size());
  }
  std::sort(order.begin(), order.end());
  int64_t covered = 0;
  for (const auto& [begin, end, index] : order) {
    if (begin != covered) {
      fail(reader.entries[index], std::string(begin < covered ? "data overlaps the tensor before it"
                                                              : "data leaves a hole before it") +
                                      ": begins at " + std::to_string(begin) + ", expected " +
                                      std::to_string(covered));
    }
    covered = end;
  }
  if (covered != data_bytes) {
    throw Error(ErrorCode::kDataLoss, name + ": tensors cover " + std::to_string(covered) + " of " +
                                          std::to_string(data_bytes) + " data bytes");
  }

  SafetensorsFile out;
  out.bytes_ = bytes;
  out.metadata_ = std::move(reader.metadata);
  out.names_.reserve(order.size());
  for (const auto& [begin, end, index] : order) {
    Entry& entry = reader.entries[index];
    out.tensors_[entry.name] = {.data = header.data.data() + begin,
                                .dtype = *entry.dtype,
                                .shape = std::move(*entry.shape)};
    out.names_.push_back(std::move(entry.name));
  }
  return out;
}

const ConstTensorView* SafetensorsFile::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace tandem::engine
