#include "engine/io/posix_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

#include "engine/base/disk_full.h"

namespace tandem::engine {

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void FileDescriptor::Close(const std::filesystem::path& path) {
  const int fd = std::exchange(fd_, -1);
  // On Linux the descriptor is closed even after EINTR. A second close could hit another file.
  if (fd >= 0 && close(fd) != 0 && errno != EINTR) ThrowSystemError("close", path, errno);
}

void ThrowSystemError(const char* verb, const std::filesystem::path& path, int error_number) {
  if (error_number == ENOMEM) throw std::bad_alloc();  // not the file's fault
  const bool absent = error_number == ENOENT || error_number == ENOTDIR;
  throw Error(absent ? ErrorCode::kNotFound : ErrorCode::kIo,
              std::string("could not ") + verb + " " + path.string() + ": " +
                  std::system_category().message(error_number))
      .WithReason(IsDiskFull(error_number) ? kDiskFullReason : "");
}

FileDescriptor OpenRegularFile(const std::filesystem::path& path, struct stat& status) {
  // O_NONBLOCK matters only for pipes, which are refused below: opening one would block.
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) ThrowSystemError("open", path, errno);
  if (fstat(file.get(), &status) != 0) ThrowSystemError("inspect", path, errno);
  if (S_ISDIR(status.st_mode)) ThrowSystemError("read", path, EISDIR);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kIo, "could not read " + path.string() + ": not a regular file");
  }
  return file;
}

FileDescriptor CreateNewFile(const std::filesystem::path& path) {
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (file.get() < 0 && errno == EEXIST) {
    throw Error(ErrorCode::kAlreadyExists, path.string() + " already exists");
  }
  if (file.get() < 0) ThrowSystemError("create", path, errno);
  return file;
}

void WriteAll(const FileDescriptor& file, std::span<const std::byte> bytes,
              const std::filesystem::path& path) {
  // Linux writes at most 2 GiB per call.
  constexpr size_t kMaxWriteBytes = size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t written = write(file.get(), bytes.data(), std::min(bytes.size(), kMaxWriteBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) ThrowSystemError("write", path, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void WriteAllAt(const FileDescriptor& file, std::span<const std::byte> bytes, int64_t offset,
                const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(file.get(), bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) ThrowSystemError("write", path, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
}

void ReadAllAt(const FileDescriptor& file, std::span<std::byte> bytes, int64_t offset,
               const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t got = pread(file.get(), bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) ThrowSystemError("read", path, errno);
    if (got == 0)
      throw Error(ErrorCode::kIo,
                  "could not read " + path.string() + ": the file is shorter than expected");
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += got;
  }
}

void Reserve(const FileDescriptor& file, int64_t bytes, const std::filesystem::path& path) {
  if (bytes > 0 && fallocate(file.get(), 0, 0, bytes) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS) {
    ThrowSystemError("reserve", path, errno);
  }
  if (ftruncate(file.get(), bytes) != 0) ThrowSystemError("reserve", path, errno);
}

void Sync(const FileDescriptor& file, const std::filesystem::path& path) {
  while (fsync(file.get()) != 0) {
    if (errno != EINTR) ThrowSystemError("sync", path, errno);
  }
}

int64_t FreeDiskBytes(const std::filesystem::path& dir) {
  constexpr auto kMost = static_cast<uintmax_t>(INT64_MAX);
  std::error_code unknown;
  const uintmax_t free = std::filesystem::space(dir, unknown).available;
  return static_cast<int64_t>(unknown ? kMost : std::min(free, kMost));
}

void SyncPath(const std::filesystem::path& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) ThrowSystemError("open", path, errno);
  Sync(file, path);
}

std::filesystem::path ParentOf(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.parent_path();
  return parent.empty() ? std::filesystem::path(".") : parent;
}

}  // namespace tandem::engine
