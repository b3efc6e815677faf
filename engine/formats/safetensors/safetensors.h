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

// The safetensors container: u64 little-endian header length, a JSON header
// {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {…}}, then the data.
// Reading validates everything before the first byte of data is handed out: the header length
// against the file and against kMaxHeaderBytes, every dtype, shape (no negative or overflowing
// dims), offsets inside the file, sizes that equal dtype x shape, no overlaps and no holes, no
// duplicate names, no unknown fields. Faults throw kDataLoss with one line naming the file and the
// field; a dtype we do not know throws kUnsupported naming the tensor. Tensors may lie at any
// address (readers use memcpy) and may be empty. Immutable; any thread.
class SafetensorsFile {
 public:
  static constexpr int64_t kMaxHeaderBytes = 100 << 20;

  static SafetensorsFile Open(const std::filesystem::path& path);
  // The same from memory (an embedded model); `name` is used in messages. The bytes must outlive
  // it.
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

// Writes a safetensors file whose data section and every tensor start at a multiple of 64 bytes
// where sizes allow it (the header is padded with spaces, tensors of odd sizes come last), fsyncs
// it, and returns the SHA-256 of the file as lower-case hex. `path` must not exist yet
// (kAlreadyExists); publishing is the caller's (atomic_write.h). Equal input gives equal bytes. On
// failure no file is left. Throws kIo, naming path and errno's text (a full disk says so).
std::string WriteSafetensors(const std::filesystem::path& path,
                             std::span<const NamedTensor> tensors,
                             const std::map<std::string, std::string>& metadata);

}  // namespace tandem::engine
