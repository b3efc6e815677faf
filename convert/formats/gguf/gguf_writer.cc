#include "convert/formats/gguf/gguf_writer.h"

#include <fcntl.h>

#include <cerrno>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/tensor/tensor.h"

namespace tandem::convert {
namespace {

using engine::GgufFile;

// Refuses content that GgufFile could not read, before the disk fills.
void CheckLimit(std::string_view key, const char* what, uint64_t count, uint64_t most) {
  if (count <= most) return;
  throw Error(ErrorCode::kUnsupported, "GGUF key " + Quoted(key) + ": " + what + " is limited to " +
                                           std::to_string(most) + ", got " + std::to_string(count));
}

template <class T>
void AppendRaw(std::string& bytes, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  bytes.append(raw, sizeof(T));
}

void AppendName(std::string& bytes, std::string_view name) {
  CheckLimit(name, "the length of a name", name.size(), GgufFile::kMaxNameBytes);
  AppendRaw(bytes, static_cast<uint64_t>(name.size()));
  bytes += name;
}

int64_t Aligned(int64_t bytes) { return RoundUp<int64_t>(bytes, kGgufAlignment); }

}  // namespace

void GgufKeys::AppendText(std::string_view key, std::string_view text, uint64_t most) {
  CheckLimit(key, "the length of a string", text.size(), most);
  Append(static_cast<uint64_t>(text.size()));
  bytes_ += text;
}

void GgufKeys::Begin(std::string_view key, GgufFile::Type type) {
  AppendName(bytes_, key);
  Append(static_cast<uint32_t>(type));
  ++count_;
}

void GgufKeys::BeginArray(std::string_view key, GgufFile::Type item, size_t count) {
  CheckLimit(key, "the length of an array", count, GgufFile::kMaxArrayItems);
  Begin(key, GgufFile::Type::kArray);
  Append(static_cast<uint32_t>(item));
  Append(static_cast<uint64_t>(count));
}

void GgufKeys::Add(std::string_view key, std::string_view text) {
  Begin(key, GgufFile::Type::kString);
  AppendText(key, text, GgufFile::kMaxStringBytes);
}

void GgufKeys::Add(std::string_view key, const std::vector<std::string>& texts) {
  BeginArray(key, GgufFile::Type::kString, texts.size());
  for (const std::string& text : texts) AppendText(key, text, GgufFile::kMaxNameBytes);
}

void GgufKeys::Add(std::string_view key, const std::vector<bool>& values) {
  BeginArray(key, GgufFile::Type::kBool, values.size());
  for (const bool value : values) Append(value);
}

int64_t GgufBytes(GgufNumbers numbers, int64_t elements) {
  switch (numbers) {
    case GgufNumbers::kF32:
      return elements * 4;
    case GgufNumbers::kF16:
    case GgufNumbers::kBF16:
      return elements * 2;
    case GgufNumbers::kQ4_0:
      return elements / engine::BlockElements(engine::Encoding::kQ4_0) *
             engine::EncodedBlockBytes(engine::Encoding::kQ4_0);
    case GgufNumbers::kQ8_0:
      return elements / engine::BlockElements(engine::Encoding::kQ8_0) *
             engine::EncodedBlockBytes(engine::Encoding::kQ8_0);
  }
  TANDEM_CHECK(false);
}

GgufFileWriter::GgufFileWriter(const std::filesystem::path& path, const GgufKeys& keys,
                               std::span<const GgufTensorInfo> tensors)
    : path_(path) {
  CheckLimit("tensors", "their number", tensors.size(), GgufFile::kMaxTensors);
  CheckLimit("keys", "their number", keys.count(), GgufFile::kMaxKeys);
  std::string head = "GGUF";
  AppendRaw(head, uint32_t{3});
  AppendRaw(head, static_cast<uint64_t>(tensors.size()));
  AppendRaw(head, keys.count());
  head += keys.bytes();
  int64_t offset = 0;
  for (const GgufTensorInfo& tensor : tensors) {
    AppendName(head, tensor.name);
    AppendRaw(head, static_cast<uint32_t>(tensor.shape.size()));
    // The file stores the innermost axis first.
    for (auto axis = tensor.shape.rbegin(); axis != tensor.shape.rend(); ++axis) {
      AppendRaw(head, static_cast<uint64_t>(*axis));
    }
    AppendRaw(head, static_cast<uint32_t>(tensor.numbers));
    AppendRaw(head, static_cast<uint64_t>(offset));
    begins_.push_back(offset);
    sizes_.push_back(GgufBytes(tensor.numbers, engine::ElementCount(tensor.shape)));
    offset += Aligned(sizes_.back());
  }
  const int64_t data = Aligned(static_cast<int64_t>(head.size()));
  for (int64_t& begin : begins_) begin += data;

  Open(data + offset);
  engine::WriteAllAt(file_, std::as_bytes(std::span(head)), 0, path_);
}

void GgufFileWriter::Open(int64_t bytes) {
  std::error_code absent;
  const auto there = std::filesystem::file_size(path_, absent);
  found_ = !absent && there == static_cast<uintmax_t>(bytes);
  if (!found_) std::filesystem::remove_all(path_);
  file_ = engine::FileDescriptor(open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (file_.get() < 0) engine::ThrowSystemError("create", path_, errno);
  engine::Reserve(file_, bytes, path_);
}

void GgufFileWriter::Write(size_t tensor, int64_t offset, std::span<const std::byte> bytes) const {
  TANDEM_CHECK(offset >= 0 && offset + static_cast<int64_t>(bytes.size()) <= sizes_.at(tensor));
  engine::WriteAllAt(file_, bytes, begins_.at(tensor) + offset, path_);
}

void GgufFileWriter::Finish() {
  engine::Sync(file_, path_);
  file_.Close(path_);
}

}  // namespace tandem::convert
