#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "engine/io/mapping_faults.h"

namespace tandem::engine {

// Identifies one state of a file without reading it.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t bytes = 0;
  int64_t modified_ns = 0;  // since the epoch
  bool operator==(const FileIdentity&) const = default;
};

// A whole file mapped read-only and shared: two processes that open the same file share its pages.
// Immutable; any thread. The bytes live as long as the object, even if the name is replaced or
// removed. Truncating the file in place while it is mapped ends the process on the next read, or
// marks the file damaged after SurviveMappingFaults (mapping_faults.h). Our own writers publish by
// rename (atomic_write.h).
class MappedFile {
 public:
  // Throws kNotFound, or kIo naming the path and errno's text (also for a pipe or a directory). An
  // empty file maps to no bytes.
  static std::shared_ptr<const MappedFile> Open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }
  // Identity at Open, and of the file that is now under the same path: nullopt when there is none,
  // or when it cannot be inspected.
  const FileIdentity& identity() const { return identity_; }
  std::optional<FileIdentity> CurrentIdentity() const;
  // Whether a page could not be read; its bytes are zeros.
  bool is_damaged() const { return watch_ && watch_->is_damaged(); }
  // Throws kDataLoss when the file was changed in place since Open, or is damaged: the bytes read
  // so far may mix two states. A file whose name was replaced or removed counts as unchanged.
  void CheckUnchanged() const;
  // Drops these bytes from the process's memory until the next read. They stay in the system's page
  // cache. Ignores bytes outside bytes().
  void LetGo(std::span<const std::byte> part) const;

 private:
  MappedFile(std::filesystem::path path, std::span<const std::byte> bytes,
             const FileIdentity& identity);

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
  FileIdentity identity_;
  std::optional<MappingWatch> watch_;  // of bytes_; nullopt for an empty file
};

}  // namespace tandem::engine
