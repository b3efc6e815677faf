#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>

#include "engine/base/check.h"
#include "engine/base/quoted.h"
#include "engine/base/utf8.h"
#include "engine/formats/safetensors/safetensors_codes.h"
#include "engine/formats/safetensors/safetensors_stream.h"
#include "engine/io/posix_file.h"
#include "engine/io/sha256.h"

namespace tandem::engine {
namespace {

constexpr size_t kHeaderLengthBytes = 8;
constexpr size_t kAlignmentBytes = 64;
constexpr const char* kMetadataKey = "__metadata__";

const char* CodeOf(DType dtype) {
  for (const DTypeCode& known : kDTypeCodes) {
    if (known.dtype == dtype) return known.code;
  }
  TANDEM_CHECK(false);
}

std::string JsonText(std::string_view text) {
  if (!IsValidUtf8(text)) {
    throw Error(ErrorCode::kInvalidArgument, "tensor name or metadata is not UTF-8");
  }
  return nlohmann::json(text).dump();
}

// The format allows no padding between tensors, so only their order can align them. Tensors of a
// multiple of 64 bytes come first: each leaves the next one aligned. The rest are sorted by falling
// element size, which keeps them naturally aligned, then by name, so that equal models give equal
// files.
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

// Returns the length field and the header, padded with spaces so that the data begins aligned.
std::string HeaderBytes(std::span<const NamedTensor* const> order,
                        const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += JsonText(kMetadataKey) + ":{";
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
  header.resize(RoundUp(kHeaderLengthBytes + header.size(), kAlignmentBytes) - kHeaderLengthBytes,
                ' ');
  if (header.size() > static_cast<size_t>(SafetensorsFile::kMaxHeaderBytes)) {
    throw Error(ErrorCode::kInvalidArgument, "safetensors header of " +
                                                 std::to_string(header.size()) +
                                                 " bytes exceeds the limit of readers");
  }
  std::string length(kHeaderLengthBytes, '\0');
  for (size_t i = 0; i < kHeaderLengthBytes; ++i) {
    length[i] = static_cast<char>((header.size() >> (8 * i)) & 0xff);
  }
  return length + header;
}

// Writes and hashes in pieces that stay in the cache between the two. Removes the file unless
// Finish succeeds.
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
    if (tensor->name == kMetadataKey || !names.insert(tensor->name).second) {
      throw Error(ErrorCode::kInvalidArgument,
                  "tensor name " + Quoted(tensor->name) + " is reserved or occurs twice");
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
  const SafetensorsLayout layout = LayOutSafetensors(tensors, metadata);
  HashingWriter writer(path);
  writer.Append(std::as_bytes(std::span(layout.header)));
  for (const SafetensorsLayout::Place& place : layout.places) {
    const NamedTensor& tensor = tensors[place.tensor];
    const std::span<const std::byte> bytes = bytes_of(tensor);
    TANDEM_CHECK(bytes.size() == tensor.view.bytes());
    writer.Append(bytes);
  }
  return writer.Finish();
}

SafetensorsLayout LayOutSafetensors(std::span<const NamedTensor> tensors,
                                    const std::map<std::string, std::string>& metadata) {
  const std::vector<const NamedTensor*> order = FileOrder(tensors);
  RefuseBadNames(order);
  SafetensorsLayout layout;
  layout.header = HeaderBytes(order, metadata);
  auto offset = static_cast<int64_t>(layout.header.size());
  for (const NamedTensor* tensor : order) {
    layout.places.push_back({static_cast<size_t>(tensor - tensors.data()), offset});
    offset += static_cast<int64_t>(tensor->view.bytes());
  }
  layout.file_bytes = offset;
  return layout;
}

}  // namespace tandem::engine
