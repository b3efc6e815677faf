#include "engine/io/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/quoted.h"
#include "engine/io/json_events.h"
#include "engine/io/posix_file.h"
#include "engine/io/safetensors_stream.h"
#include "engine/io/sha256.h"

namespace tandem::engine {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxRank = 32;
constexpr size_t kAlignmentBytes = 64;
constexpr const char* kMetadataName = "__metadata__";

struct DTypeCode {
  const char* code;
  DType dtype;
};
constexpr DTypeCode kDTypeCodes[] = {
    {"F32", DType::kF32}, {"BF16", DType::kBF16}, {"F16", DType::kF16}, {"F64", DType::kF64},
    {"I64", DType::kI64}, {"I32", DType::kI32},   {"I16", DType::kI16}, {"I8", DType::kI8},
    {"U8", DType::kU8},   {"BOOL", DType::kBool},
};

// One tensor as the header describes it, before anything of it is believed.
struct Entry {
  std::string name;
  std::optional<DType> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<int64_t>> offsets;  // begin, end, from the start of the data
};

// Reads the header without building a tree: a header may be 100 MiB, and a tree of it is many
// times that. The nesting is fixed: header > tensor > shape or data_offsets.
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

struct Header {
  std::string_view text;
  std::span<const std::byte> data;
};

// Splits the file after checking the declared length against the file and the limit.
Header SplitFile(std::span<const std::byte> bytes, const std::string& source) {
  const auto fail = [&](const std::string& what) -> Header {
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

// Bytes that dtype x shape takes; nothing when that does not fit an int64.
std::optional<int64_t> TensorBytes(DType dtype, std::span<const int64_t> shape) {
  auto bytes = static_cast<int64_t>(DTypeBytes(dtype));
  // The elements must fit on their own too: [2^62, 8, 0] has no bytes, and no element count.
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  }
  return bytes;
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
  const Header header = SplitFile(bytes, name);
  HeaderReader reader;
  // A tensor's numbers are on the third level; anything deeper is refused before parsing.
  ParseJsonEvents(header.text, name + " header", 3, reader);

  const auto fail = [&](const Entry& entry, const std::string& what) {
    throw Error(ErrorCode::kDataLoss, name + ": tensor " + Quoted(entry.name) + ": " + what);
  };
  const auto data_bytes = static_cast<int64_t>(header.data.size());

  // Each tensor by itself: its offsets lie in the file and agree with dtype and shape.
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

  // All together: they tile the data without overlap or hole.
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

namespace {

const char* CodeOf(DType dtype) {
  for (const DTypeCode& known : kDTypeCodes) {
    if (known.dtype == dtype) return known.code;
  }
  TANDEM_CHECK(false);
}

std::string JsonText(std::string_view text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::kInvalidArgument, "tensor name or metadata is not UTF-8");
  }
}

// The format allows no padding between tensors, so order is all we have: tensors of a multiple of
// 64 bytes first, each of which leaves the next one aligned; then by falling element size, which
// keeps the rest at least naturally aligned; then by name, so that equal models give equal files.
std::vector<const NamedTensor*> FileOrder(std::span<const NamedTensor> tensors) {
  std::vector<const NamedTensor*> order;
  order.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  const auto key = [](const NamedTensor* tensor) {
    return std::tuple(tensor->view.bytes() % kAlignmentBytes != 0,
                      -static_cast<int>(DTypeBytes(tensor->view.dtype)),
                      std::string_view(tensor->name));
  };
  std::sort(order.begin(), order.end(), [&](auto* a, auto* b) { return key(a) < key(b); });
  return order;
}

// The length field and the header, padded with spaces so that the data begins aligned.
std::string HeaderBytes(std::span<const NamedTensor* const> order,
                        const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += JsonText(kMetadataName) + ":{";
    for (const auto& [name, value] : metadata)
      header += JsonText(name) + ":" + JsonText(value) + ",";
    header.back() = '}';
    header += ",";
  }
  size_t offset = 0;
  for (const NamedTensor* tensor : order) {
    header +=
        JsonText(tensor->name) + ":{\"dtype\":\"" + CodeOf(tensor->view.dtype) + "\",\"shape\":[";
    for (const int64_t dim : tensor->view.shape) header += std::to_string(dim) + ",";
    if (!tensor->view.shape.empty()) header.pop_back();
    const size_t end = CheckedAdd(offset, tensor->view.bytes(), "safetensors data");
    header += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(end) + "]},";
    offset = end;
  }
  if (header.size() > 1) header.pop_back();
  header += "}";
  header.resize(RoundUp(kLengthBytes + header.size(), kAlignmentBytes) - kLengthBytes, ' ');
  if (header.size() > static_cast<size_t>(SafetensorsFile::kMaxHeaderBytes)) {
    throw Error(ErrorCode::kInvalidArgument, "safetensors header of " +
                                                 std::to_string(header.size()) +
                                                 " bytes exceeds what readers accept");
  }
  std::string length(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length[i] = static_cast<char>((header.size() >> (8 * i)) & 0xff);
  }
  return length + header;
}

// Writes and hashes in pieces that stay in the cache between the two. Unless finished, it leaves no
// file behind.
class HashingWriter {
 public:
  explicit HashingWriter(const std::filesystem::path& path)
      : path_(path), file_(CreateNewFile(path)) {}
  ~HashingWriter() {
    if (!finished_) unlink(path_.c_str());
  }
  HashingWriter(const HashingWriter&) = delete;
  HashingWriter& operator=(const HashingWriter&) = delete;

  void Append(std::span<const std::byte> bytes) {
    constexpr size_t kPieceBytes = size_t{1} << 20;
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min(bytes.size(), kPieceBytes));
      hash_.Update(piece);
      WriteAll(file_, piece, path_);
      bytes = bytes.subspan(piece.size());
    }
  }

  std::string Finish() {
    Sync(file_, path_);
    file_.Close(path_);
    finished_ = true;
    return ToHex(hash_.Finish());
  }

 private:
  const std::filesystem::path& path_;
  FileDescriptor file_;
  Sha256 hash_;
  bool finished_ = false;
};

void RefuseBadNames(std::span<const NamedTensor* const> order) {
  std::unordered_set<std::string_view> names;
  for (const NamedTensor* tensor : order) {
    if (tensor->name == kMetadataName || !names.insert(tensor->name).second) {
      throw Error(ErrorCode::kInvalidArgument,
                  "tensor name " + Quoted(tensor->name) + " is reserved or given twice");
    }
  }
}

}  // namespace

std::string WriteSafetensors(const std::filesystem::path& path,
                             std::span<const NamedTensor> tensors,
                             const std::map<std::string, std::string>& metadata) {
  return WriteSafetensors(path, tensors, metadata, [](const NamedTensor& tensor) {
    return std::span(tensor.view.data, tensor.view.bytes());
  });
}

std::string WriteSafetensors(const std::filesystem::path& path,
                             std::span<const NamedTensor> tensors,
                             const std::map<std::string, std::string>& metadata,
                             const TensorBytesFunction& bytes_of) {
  const std::vector<const NamedTensor*> order = FileOrder(tensors);
  RefuseBadNames(order);
  const std::string header = HeaderBytes(order, metadata);

  HashingWriter writer(path);
  writer.Append(std::as_bytes(std::span(header)));
  for (const NamedTensor* tensor : order) {
    const std::span<const std::byte> bytes = bytes_of(*tensor);
    TANDEM_CHECK(bytes.size() == tensor->view.bytes());
    writer.Append(bytes);
  }
  return writer.Finish();
}

}  // namespace tandem::engine
