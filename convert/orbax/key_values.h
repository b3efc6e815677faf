#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/io/mapped_file.h"

namespace tandem::convert {

// Bytes and the owner of their memory.
struct StoredBytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
  const engine::MappedFile* file = nullptr;  // the mapped file of the bytes; null: in memory

  // Releases the mapped pages of bytes that will not be read again.
  void LetGo() const {
    if (file != nullptr) file->LetGo(bytes);
  }
};

// The named values of a checkpoint, such as metadata and chunks of arrays. Immutable; any thread.
class KeyValues {
 public:
  virtual ~KeyValues() = default;
  // Returns nullopt for an unknown name. Throws kDataLoss, kIo.
  virtual std::optional<StoredBytes> Find(const std::string& key) const = 0;
  // All keys, ascending.
  virtual std::vector<std::string> Keys() const = 0;
};

// Opens all regular files below a directory, keyed by relative path; links are not followed.
std::unique_ptr<KeyValues> OpenFileTree(const std::filesystem::path& dir);

// Opens a directory with manifest.ocdbt, TensorStore's database of optionally cooperative,
// distributed B-trees (OCDBT), at its newest version. Files are mapped. All content is validated,
// and no path leaves `dir`. Throws kNotFound, kUnsupported, and kDataLoss naming file and byte.
std::unique_ptr<KeyValues> OpenOcdbt(const std::filesystem::path& dir);

}  // namespace tandem::convert
