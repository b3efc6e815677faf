#include "engine/loop/block_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <random>
#include <string>

#include "engine/base/attempt.h"
#include "engine/base/error.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemporary = ".writing-";

std::optional<Sha256Digest> FromHex(const std::string& text) {
  Sha256Digest digest{};
  if (text.size() != 2 * digest.size()) return std::nullopt;
  const auto value = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < digest.size(); ++i) {
    const int high = value(text[2 * i]);
    const int low = value(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest[i] = static_cast<uint8_t>(16 * high + low);
  }
  return digest;
}

bool IsTemporary(const std::string& name) { return name.rfind(kTemporary, 0) == 0; }

// Different for every writer, whatever its process id: containers share a directory, too.
std::string NewTemporary() {
  std::random_device random;
  std::array<char, 17> hex{};
  ::snprintf(hex.data(), hex.size(), "%08x%08x", random(), random());
  return kTemporary + std::string(hex.data());
}

FileDescriptor OpenDir(const fs::path& path) {
  return FileDescriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// A lock of the whole directory that ends with the descriptor. The kernel wants zeros elsewhere.
struct flock WholeDir(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

// Shows IsInUse that the directory has a user.
void MarkAsUsed(const FileDescriptor& dir) {
  struct flock lock = WholeDir(F_RDLCK);
  (void)::fcntl(dir.get(), F_OFD_SETLK, &lock);  // where it fails, F_OFD_GETLK fails, too
}

// Whether the path still names the open directory.
bool IsAt(const FileDescriptor& dir, const fs::path& path) {
  struct stat open {};
  struct stat named {};
  return ::fstat(dir.get(), &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

// Calls `action` with the name of each entry.
template <class Action>
void ForEachEntry(const fs::path& path, const Action& action) {
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    action(at->path().filename().string());
  }
  if (error) ThrowSystemError("list", path, error.value());
}

// Removes files that are ours by their name.
template <class IsOurs>
void RemoveFiles(const FileDescriptor& dir, const fs::path& path, const IsOurs& is_ours) {
  std::vector<std::string> names;
  ForEachEntry(path, [&](std::string name) {
    if (is_ours(name)) names.push_back(std::move(name));
  });
  for (const std::string& name : names) ::unlinkat(dir.get(), name.c_str(), 0);
}

}  // namespace

BlockDir::BlockDir(fs::path path) : path_(std::move(path)) {
  // A remover may take the directory between its creation and its lock.
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    if (TryOpen()) return;
  }
  throw Error(ErrorCode::kIo, "could not open " + path_.string() + ": others remove it");
}

// The time of the last use is also that of the last change.
BlockDir::~BlockDir() { ::futimens(dir_.get(), nullptr); }

bool BlockDir::TryOpen() {
  std::error_code error;
  fs::create_directories(ParentOf(path_), error);
  if (error) ThrowSystemError("create", ParentOf(path_), error.value());
  if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) {
    ThrowSystemError("create", path_, errno);
  }
  FileDescriptor dir = OpenDir(path_);
  if (dir.get() < 0 && errno == ENOENT) return false;
  if (dir.get() < 0) ThrowSystemError("open", path_, errno);
  struct stat status {};
  if (::fstat(dir.get(), &status) != 0) ThrowSystemError("inspect", path_, errno);
  // Texts can be read from keys and values, and who may write here may change answers.
  if (status.st_uid != ::geteuid()) {
    throw Error(ErrorCode::kPermissionDenied,
                path_.string() + " belongs to user " + std::to_string(status.st_uid) +
                    ", but this process runs as user " + std::to_string(::geteuid()) +
                    ": remove the directory or name another one");
  }
  if ((status.st_mode & 07777) != 0700 && ::fchmod(dir.get(), 0700) != 0) {
    ThrowSystemError("protect", path_, errno);
  }
  if (::flock(dir.get(), LOCK_EX | LOCK_NB) == 0) RemoveFiles(dir, path_, IsTemporary);
  while (::flock(dir.get(), LOCK_SH) != 0 && errno == EINTR) {
  }
  if (!IsAt(dir, path_)) return false;
  MarkAsUsed(dir);
  ::futimens(dir.get(), nullptr);
  dir_ = std::move(dir);
  return true;
}

std::pair<std::vector<BlockDir::File>, int64_t> BlockDir::List(int64_t file_bytes) const {
  std::vector<File> files;
  int64_t n_others = 0;
  ForEachEntry(path_, [&](const std::string& entry) {
    if (IsTemporary(entry)) return;
    struct stat status {};
    const std::optional<Name> name = FromHex(entry);
    if (name && ::fstatat(dir_.get(), entry.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(status.st_mode) && status.st_size == file_bytes) {
      files.push_back({*name, status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec});
    } else {
      ++n_others;
    }
  });
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) {
    return std::pair(a.used_ns, a.name) < std::pair(b.used_ns, b.name);
  });
  return {std::move(files), n_others};
}

void BlockDir::Write(const Name& name,
                     std::initializer_list<std::span<const std::byte>> parts) const {
  const std::string temporary = NewTemporary();
  const fs::path path = path_ / temporary;
  // Never an existing file, and never the target of a link.
  FileDescriptor file(::openat(dir_.get(), temporary.c_str(),
                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) ThrowSystemError("create", path, errno);
  UndoOnFailure(
      [&] {
        for (const std::span<const std::byte> part : parts) WriteAll(file, part, path);
        file.Close(path);
        if (::renameat(dir_.get(), temporary.c_str(), dir_.get(), ToHex(name).c_str()) != 0) {
          ThrowSystemError("rename", path, errno);
        }
      },
      [&] { ::unlinkat(dir_.get(), temporary.c_str(), 0); });
}

void BlockDir::Read(const Name& name, std::span<std::byte> header,
                    std::span<std::byte> content) const {
  const fs::path path = PathOf(name);
  // O_NONBLOCK matters only for pipes, which are refused below: opening one would block.
  const FileDescriptor file(::openat(dir_.get(), path.filename().c_str(),
                                     O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) ThrowSystemError("open", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) ThrowSystemError("inspect", path, errno);
  if (!S_ISREG(status.st_mode)) throw Error(ErrorCode::kIo, path.string() + " is not a file");
  const auto expected = static_cast<int64_t>(header.size() + content.size());
  if (status.st_size != expected) {
    throw Error(ErrorCode::kDataLoss, path.string() + " has " + std::to_string(status.st_size) +
                                          " bytes, not " + std::to_string(expected));
  }
  ReadAllAt(file, header, 0, path);
  ReadAllAt(file, content, static_cast<int64_t>(header.size()), path);
  ::futimens(file.get(), nullptr);  // the order of use after a restart; may fail
}

void BlockDir::Remove(const Name& name) const { ::unlinkat(dir_.get(), ToHex(name).c_str(), 0); }

// Asks without a lock of its own: others who look at the same time must not count as users. flock
// cannot do that.
bool BlockDir::IsInUse(const fs::path& path) {
  const FileDescriptor dir = OpenDir(path);
  // Only what is missing, or no directory, surely has no user. No descriptor may be free.
  if (dir.get() < 0) return errno != ENOENT && errno != ENOTDIR && errno != ELOOP;
  struct flock lock = WholeDir(F_WRLCK);
  return ::fcntl(dir.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool BlockDir::RemoveIfUnused(const fs::path& path) {
  const FileDescriptor dir = OpenDir(path);
  struct stat status {};
  if (dir.get() < 0 || ::fstat(dir.get(), &status) != 0 || status.st_uid != ::geteuid()) {
    return false;
  }
  if (::flock(dir.get(), LOCK_EX | LOCK_NB) != 0) return false;
  const auto is_ours = [](const std::string& name) { return IsTemporary(name) || FromHex(name); };
  if (Attempt([&] { RemoveFiles(dir, path, is_ours); })) return false;
  return ::rmdir(path.c_str()) == 0;
}

}  // namespace tandem::engine
