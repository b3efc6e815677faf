#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/io/mapped_file.h"
#include "engine/tensor/tensor.h"

namespace tandem::engine {

// The safetensors container: u64 little-endian header length, a JSON header {"name": {"dtype",
// "shape", "data_offsets": [begin, end]}, "__metadata__": {…}}, then the data. Open checks
// everything before any view exists: the header length against the file and kMaxHeaderBytes,
// dtypes, shapes (no negative or overflowing dims), and offsets inside the file. Sizes must equal
// dtype x shape; overlaps, holes, duplicate names and unknown fields are refused. Throws kDataLoss
// with one line naming the file and the field, and kUnsupported naming the tensor for an unknown
// dtype. Tensors may begin at any address (readers use memcpy) and may be empty. Immutable; any
// thread.
class SafetensorsFile {
 public:
  static constexpr int64_t kMaxHeaderBytes = 100 << 20;

  static SafetensorsFile Open(const std::filesystem::path& path);
  // Reads from memory (an embedded model). `name` is for messages. The bytes must outlive the
  // SafetensorsFile.
  static SafetensorsFile FromBytes(std::span<const std::byte> bytes, const std::string& name);

  const std::vector<std::string>& names() const { return names_; }  // in the order of their data
  const ConstTensorView* Find(std::string_view name) const;         // null when absent
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::span<const std::byte> bytes() const { return bytes_; }              // the whole file
  const std::shared_ptr<const MappedFile>& file() const { return file_; }  // null: from memory

 private:
  std::shared_ptr<const MappedFile> file_;
  std::span<const std::byte> bytes_;
  std::vector<std::string> names_;
  std::map<std::string, ConstTensorView, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

struct NamedTensor {
  std::string name;
  ConstTensorView view;
};

// Writes and fsyncs a safetensors file and returns its SHA-256 as lower-case hex. The data section
// begins at a multiple of 64 bytes (the header is padded with spaces). Tensors do too where sizes
// allow it: tensors of other sizes come last. Equal input gives equal bytes. `path` must not exist
// (kAlreadyExists); the caller publishes the file (atomic_write.h). On failure no file remains.
// Throws kIo naming path and errno's text, also for a full disk.
std::string WriteSafetensors(const std::filesystem::path& path,
                             std::span<const NamedTensor> tensors,
                             const std::map<std::string, std::string>& metadata);

}  // namespace tandem::engine
