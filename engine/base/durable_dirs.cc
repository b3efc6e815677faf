#include "engine/base/durable_dirs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "engine/base/disk_full.h"
#include "engine/base/error.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void ThrowIo(const char* verb, const fs::path& path, int error_number) {
  throw Error(ErrorCode::kIo, std::string("could not ") + verb + " " + path.string() + ": " +
                                  std::generic_category().message(error_number))
      .WithReason(IsDiskFull(error_number) ? kDiskFullReason : "");
}

fs::path ParentOf(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

void SyncDirectory(const fs::path& dir) {
  const int fd = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) ThrowIo("open", dir, errno);
  int rc = 0;
  while ((rc = ::fsync(fd)) != 0 && errno == EINTR) {
  }
  const int error_number = errno;
  ::close(fd);
  if (rc != 0) ThrowIo("sync", dir, error_number);
}

void MakeDirectories(const fs::path& path) {
  // "out/" and "out" are the same directory, but only "out" has a file name to create.
  const fs::path dir = path.has_filename() ? path : path.parent_path();
  std::error_code unknown;
  if (dir.empty() || fs::is_directory(dir, unknown)) return;
  MakeDirectories(dir.parent_path());
  // Another process may have created it meanwhile.
  const int error_number = ::mkdir(dir.c_str(), 0777) == 0 ? 0 : errno;
  if (!fs::is_directory(dir, unknown)) ThrowIo("create", dir, error_number);
  SyncDirectory(ParentOf(dir));
}

}  // namespace tandem
