#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace tandem::engine {

// A whole file mapped read-only and shared: two processes that open the same file share its pages.
// Immutable and safe to read from any thread. The bytes live as long as the object.
class MappedFile {
 public:
  // Throws kNotFound, kIo (naming the path and errno's text). An empty file maps to no bytes.
  static std::shared_ptr<const MappedFile> Open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile(std::filesystem::path path, std::span<const std::byte> bytes);

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace tandem::engine
