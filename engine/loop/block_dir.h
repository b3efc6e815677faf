#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "engine/io/posix_file.h"
#include "engine/io/sha256.h"

namespace tandem::engine {

// A directory of files of one size, each under a SHA-256 in hex. It belongs to this process's user
// alone, and other objects of any process may have it open, too. While one has, RemoveIfUnused
// keeps the directory (flock; on a file system without locks it keeps every directory). Any thread.
class BlockDir {
 public:
  using Name = Sha256Digest;
  struct File {
    Name name;
    int64_t used_ns = 0;  // since the epoch
  };

  // Creates it, mode 0700, and removes what a killed writer left if no other object has it open.
  // Throws kPermissionDenied when it belongs to another user, and kIo; a link is no directory.
  explicit BlockDir(std::filesystem::path path);
  ~BlockDir();
  BlockDir(const BlockDir&) = delete;
  BlockDir& operator=(const BlockDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path PathOf(const Name& name) const { return path_ / ToHex(name); }

  // Its files of `file_bytes` bytes, the one used least recently first, and the number of other
  // entries. Throws kIo.
  std::pair<std::vector<File>, int64_t> List(int64_t file_bytes) const;
  // Writes the parts one after the other under a temporary name, and renames. No fsync: a reader
  // must verify the content. Throws kIo and kNotFound.
  void Write(const Name& name, std::initializer_list<std::span<const std::byte>> parts) const;
  // Fills both from the file, and sets the time of its use. Throws kNotFound, kDataLoss when the
  // file has another length, and kIo when it cannot be read now.
  void Read(const Name& name, std::span<std::byte> header, std::span<std::byte> content) const;
  void Remove(const Name& name) const;  // failures are ignored

  // Whether an object of any process has the directory open; also true where that is unknown. Other
  // calls of this function and of RemoveIfUnused, in any process, do not count.
  static bool IsInUse(const std::filesystem::path& path);
  // Removes our files of a directory that no process has open, then the directory if it is empty.
  // Returns whether the directory is gone. Never throws.
  static bool RemoveIfUnused(const std::filesystem::path& path);

 private:
  bool TryOpen();

  const std::filesystem::path path_;
  FileDescriptor dir_;
};

}  // namespace tandem::engine
