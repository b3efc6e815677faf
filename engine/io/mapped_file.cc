#include "engine/io/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "engine/io/posix_file.h"

namespace tandem::engine {

std::shared_ptr<const MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  struct stat status {};
  const FileDescriptor file = OpenRegularFile(path, status);
  const FileIdentity identity{
      .device = status.st_dev,
      .inode = status.st_ino,
      .bytes = status.st_size,
      .modified_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
  const auto bytes = static_cast<size_t>(status.st_size);
  if (bytes == 0) return std::shared_ptr<const MappedFile>(new MappedFile(path, {}, identity));

  void* at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) ThrowSystemError("map", path, errno);
  return std::shared_ptr<const MappedFile>(
      new MappedFile(path, {static_cast<const std::byte*>(at), bytes}, identity));
}

FileIdentity MappedFile::CurrentIdentity() const {
  struct stat status {};
  if (stat(path_.c_str(), &status) != 0) ThrowSystemError("inspect", path_, errno);
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .bytes = status.st_size,
          .modified_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

MappedFile::MappedFile(std::filesystem::path path, std::span<const std::byte> bytes,
                       const FileIdentity& identity)
    : path_(std::move(path)), bytes_(bytes), identity_(identity) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace tandem::engine
