#include "server/files/temporary_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "engine/base/error.h"
#include "server/database/disk_full.h"

namespace tandem::server {
namespace {

// Starts the write-back early, so that the final sync is short for files of any size.
constexpr int64_t kFlushBytes = int64_t{8} << 20;

[[noreturn]] void Throw(const char* what, const std::filesystem::path& path, int error_number) {
  if (IsDiskFull(error_number)) ThrowDiskFull();
  throw Error(ErrorCode::kIo, std::string("could not ") + what + " " + path.string() + ": " +
                                  std::generic_category().message(error_number));
}

}  // namespace

TemporaryFile::TemporaryFile(std::filesystem::path path) {
  fd_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd_) Throw("create", path, errno);
  path_ = std::move(path);
}

TemporaryFile::TemporaryFile(TemporaryFile&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      fd_(std::move(other.fd_)),
      bytes_(other.bytes_),
      flushed_bytes_(other.flushed_bytes_) {}

TemporaryFile& TemporaryFile::operator=(TemporaryFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  std::swap(flushed_bytes_, other.flushed_bytes_);
  return *this;
}

void TemporaryFile::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      Throw("write", path_, errno);
    }
    bytes.remove_prefix(static_cast<size_t>(n));
    bytes_ += n;
  }
  if (bytes_ - flushed_bytes_ >= kFlushBytes) {
    // Advice only; the final sync covers a failure.
    ::sync_file_range(fd_.get(), flushed_bytes_, bytes_ - flushed_bytes_, SYNC_FILE_RANGE_WRITE);
    flushed_bytes_ = bytes_;
  }
}

void TemporaryFile::Publish(const std::filesystem::path& path) {
  if (::fsync(fd_.get()) != 0) Throw("write", path_, errno);
  if (::rename(path_.c_str(), path.c_str()) != 0) Throw("rename", path_, errno);
  path_.clear();
  fd_ = UniqueFd();
  const std::filesystem::path dir = path.parent_path();
  const UniqueFd dir_fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir_fd || ::fsync(dir_fd.get()) != 0) Throw("write", dir, errno);
}

void TemporaryFile::Remove() {
  if (!path_.empty()) ::unlink(path_.c_str());
  path_.clear();
}

}  // namespace tandem::server
