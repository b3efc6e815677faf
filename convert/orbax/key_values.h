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

// Bytes, and what keeps them where they are.
struct StoredBytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
  const engine::MappedFile* file = nullptr;  // that they lie in; null: in memory

  // Called when they have been read for good: they leave the process's memory.
  void LetGo() const {
    if (file != nullptr) file->LetGo(bytes);
  }
};

// Where arrays of a checkpoint are kept: named values. Immutable; any thread.
class KeyValues {
 public:
  virtual ~KeyValues() = default;
  // nullopt when there is none of that name. Throws kDataLoss, kIo.
  virtual std::optional<StoredBytes> Find(const std::string& key) const = 0;
  // Of all values, ascending.
  virtual std::vector<std::string> Keys() const = 0;
};

// Every regular file below a directory, by its path in there; links are not followed.
std::unique_ptr<KeyValues> OpenFileTree(const std::filesystem::path& dir);

// A directory that holds manifest.ocdbt: TensorStore's database of optionally cooperative,
// distributed B-trees (OCDBT), the newest version of it. Files are mapped. Everything is looked at
// before it is believed, and no path leaves `dir`. Throws kNotFound, kUnsupported, and kDataLoss
// naming file and byte.
std::unique_ptr<KeyValues> OpenOcdbt(const std::filesystem::path& dir);

}  // namespace tandem::convert
