#include "engine/io/atomic_write.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <system_error>
#include <vector>

#include "engine/io/posix_file.h"

// The bytes go to `<name>.tmp-<random>` in the same directory, are fsynced, and get their name by
// rename, which is atomic. The fsync of the parent directory makes the name durable. A writer holds
// an flock on its temporary, so that RemoveStaleTemporaries never removes a live writer's file.

namespace tandem::engine {
namespace {

constexpr const char* kTemporaryMark = ".tmp-";

std::filesystem::path TemporaryBeside(const std::filesystem::path& path) {
  std::random_device random;
  std::array<char, 17> hex{};
  snprintf(hex.data(), hex.size(), "%08x%08x", random(), random());
  std::filesystem::path temporary = path;
  temporary += kTemporaryMark;
  temporary += hex.data();
  return temporary;
}

// Locks a fresh temporary. Returns false when a cleaner removed it between creation and lock. File
// systems without flock lose only this protection.
bool LockTemporary(const FileDescriptor& file, const std::filesystem::path& temporary) {
  flock(file.get(), LOCK_EX | LOCK_NB);
  struct stat held {};
  struct stat named {};
  if (fstat(file.get(), &held) != 0) ThrowSystemError("inspect", temporary, errno);
  if (stat(temporary.c_str(), &named) != 0) return false;
  return held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

// Removes its path unless Published was called.
class TemporaryGuard {
 public:
  explicit TemporaryGuard(std::filesystem::path path) : path_(std::move(path)) {}
  ~TemporaryGuard() {
    std::error_code ignored;  // an earlier failure is already on its way
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryGuard(const TemporaryGuard&) = delete;
  TemporaryGuard& operator=(const TemporaryGuard&) = delete;

  void Published() { path_.clear(); }

 private:
  std::filesystem::path path_;
};

[[noreturn]] void ThrowExists(const std::filesystem::path& path) {
  throw Error(ErrorCode::kAlreadyExists, path.string() + " already exists");
}

// A plain rename would replace an empty directory without an error.
void RenameWithoutReplacing(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno == EEXIST) ThrowExists(to);
  if (errno != EINVAL && errno != ENOSYS) ThrowSystemError("rename to", to, errno);
  // The file system lacks RENAME_NOREPLACE: check, then rename. Another writer can come in between.
  if (std::filesystem::exists(std::filesystem::symlink_status(to))) ThrowExists(to);
  if (rename(from.c_str(), to.c_str()) != 0) ThrowSystemError("rename to", to, errno);
}

// Afterwards `from` names the old content of `to`; the caller removes it.
void Exchange(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) ThrowSystemError("rename to", to, errno);
  // The file system lacks RENAME_EXCHANGE: for a moment `to` does not exist.
  const std::filesystem::path old = TemporaryBeside(to);
  if (rename(to.c_str(), old.c_str()) != 0) ThrowSystemError("rename", to, errno);
  if (rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    (void)rename(old.c_str(), to.c_str());
    ThrowSystemError("rename to", to, error);
  }
  if (rename(old.c_str(), from.c_str()) != 0) ThrowSystemError("rename", old, errno);
}

// Syncs children before parents, so that a directory is synced after all its entries.
void SyncTree(const std::filesystem::path& dir) {
  std::vector<std::filesystem::path> dirs{dir};
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(dir, error);
  for (; !error && entry != std::filesystem::recursive_directory_iterator();
       entry.increment(error)) {
    if (entry->is_symlink()) continue;
    if (entry->is_directory()) dirs.push_back(entry->path());
    if (entry->is_regular_file()) SyncPath(entry->path());
  }
  if (error) ThrowSystemError("list", dir, error.value());
  std::for_each(dirs.rbegin(), dirs.rend(), SyncPath);
}

}  // namespace

void WriteFileAtomically(const std::filesystem::path& path, std::string_view text) {
  for (;;) {
    const std::filesystem::path temporary = TemporaryBeside(path);
    FileDescriptor file = CreateNewFile(temporary);
    TemporaryGuard guard(temporary);
    if (!LockTemporary(file, temporary)) continue;

    WriteAll(file, std::as_bytes(std::span(text)), temporary);
    Sync(file, temporary);
    if (rename(temporary.c_str(), path.c_str()) != 0) ThrowSystemError("rename to", path, errno);
    guard.Published();
    file.Close(path);
    SyncPath(ParentOf(path));
    return;
  }
}

void PublishDirectory(const std::filesystem::path& final_dir,
                      const std::function<void(const std::filesystem::path& temporary)>& fill,
                      IfThere if_there) {
  // "out/" and "out" are the same directory, but only "out" has a file name to extend.
  const std::filesystem::path target =
      final_dir.has_filename() ? final_dir : final_dir.parent_path();
  const auto is_there = [&] {
    return std::filesystem::exists(std::filesystem::symlink_status(target));
  };
  if (if_there == IfThere::kRefuse && is_there()) ThrowExists(target);

  for (;;) {
    const std::filesystem::path temporary = TemporaryBeside(target);
    if (mkdir(temporary.c_str(), 0755) != 0) ThrowSystemError("create", temporary, errno);
    TemporaryGuard guard(temporary);
    const FileDescriptor dir(open(temporary.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (dir.get() < 0 || !LockTemporary(dir, temporary)) continue;

    fill(temporary);
    PublishPath(temporary, target, if_there);  // the guard removes a replaced directory
    return;
  }
}

void PublishPath(const std::filesystem::path& from, const std::filesystem::path& to,
                 IfThere if_there) {
  if (std::filesystem::is_directory(from)) {
    SyncTree(from);
  } else {
    SyncPath(from);
  }
  const bool is_there = std::filesystem::exists(std::filesystem::symlink_status(to));
  if (if_there == IfThere::kReplace && is_there) {
    Exchange(from, to);
  } else {
    RenameWithoutReplacing(from, to);
  }
  SyncPath(ParentOf(to));
}

void RemoveStaleTemporaries(const std::filesystem::path& parent, const std::string& name) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  std::filesystem::directory_iterator entry(parent, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string file = entry->path().filename().string();
    const size_t mark = file.find(kTemporaryMark);
    if (mark == std::string::npos || mark == 0) continue;
    if (name.empty() || file.substr(0, mark) == name) found.push_back(entry->path());
  }
  if (error.value() == ENOENT) return;  // no writer has used it yet
  if (error) ThrowSystemError("list", parent, error.value());

  for (const std::filesystem::path& path : found) {
    const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file.get() >= 0 && flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      continue;  // its writer is alive
    }
    std::error_code ignored;  // another cleaner may have removed it
    std::filesystem::remove_all(path, ignored);
  }
}

std::string ReadWholeFile(const std::filesystem::path& path, size_t max_bytes) {
  struct stat status {};
  const FileDescriptor file = OpenRegularFile(path, status);
  const auto throw_too_large = [&](const std::string& bytes) {
    throw Error(ErrorCode::kDataLoss, path.string() + " has " + bytes +
                                          " bytes, more than the limit of " +
                                          std::to_string(max_bytes));
  };
  const auto expected = static_cast<size_t>(status.st_size);
  if (expected > max_bytes) throw_too_large(std::to_string(expected));

  // Files of /proc report 0 bytes and have content, and any file may grow: read decides where the
  // end is.
  std::string text;
  text.resize(std::max<size_t>(expected, 4095) + 1);
  size_t size = 0;
  for (;;) {
    if (size == text.size()) text.resize(2 * text.size());
    const ssize_t got = read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) ThrowSystemError("read", path, errno);
    if (got == 0) break;
    size += static_cast<size_t>(got);
    if (size > max_bytes) throw_too_large("at least " + std::to_string(size));
  }
  text.resize(size);
  return text;
}

}  // namespace tandem::engine
