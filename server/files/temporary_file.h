#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "server/jobs/unique_fd.h"

namespace tandem::server {

// A file being written, removed on destruction unless published. Move-only; one thread at a time.
// Disk errors are kIo; a full disk is kUnavailable (insufficient_storage).
class TemporaryFile {
 public:
  // Creates the file. REQUIRES: `path` does not exist.
  explicit TemporaryFile(std::filesystem::path path);
  ~TemporaryFile() { Remove(); }
  TemporaryFile(TemporaryFile&& other) noexcept;
  TemporaryFile& operator=(TemporaryFile&& other) noexcept;

  void Write(std::string_view bytes);
  int64_t bytes() const { return bytes_; }
  // Renames the file to `path`. It is on disk at return, and the temporary name is gone. After a
  // failure `path` may be the new file, too.
  void Publish(const std::filesystem::path& path);

 private:
  void Remove();

  std::filesystem::path path_;  // empty: nothing to remove
  UniqueFd fd_;
  int64_t bytes_ = 0;
  int64_t flushed_bytes_ = 0;
};

}  // namespace tandem::server
