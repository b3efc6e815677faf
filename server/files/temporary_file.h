#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "server/jobs/unique_fd.h"

namespace tandem::server {

// A file in the making, which goes with this object unless it was published. Moved, not copied; one
// thread at a time. Faults of the disk are kIo, a full one is kUnavailable (insufficient_storage).
class TemporaryFile {
 public:
  // Creates it. REQUIRES: nothing is there.
  explicit TemporaryFile(std::filesystem::path path);
  ~TemporaryFile() { Remove(); }
  TemporaryFile(TemporaryFile&& other) noexcept;
  TemporaryFile& operator=(TemporaryFile&& other) noexcept;

  void Write(std::string_view bytes);
  int64_t bytes() const { return bytes_; }
  // Under its name, on disk when this returns; nothing of the temporary one is left.
  void Publish(const std::filesystem::path& path);

 private:
  void Remove();

  std::filesystem::path path_;  // empty: nothing to remove
  UniqueFd fd_;
  int64_t bytes_ = 0;
  int64_t flushed_bytes_ = 0;
};

}  // namespace tandem::server
