// LD_PRELOAD library that logs every change below one directory, for power_loss_test.cc to replay.
// It passes the calls of the program and its children through unchanged.
//
// One lock over all recorded processes is held from before a call until its record is written. The
// log therefore has the order of the events.
//
// Not recorded: stdio's buffers, and stores through a shared mapping (SQLite's -shm, which SQLite
// rebuilds after a power loss).

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <string>

#include "tests/durability/io_record.h"

namespace {

using tandem::tests::IoHead;
using tandem::tests::IoKind;

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// The next definition of this name: the function that the program would have called.
#define REAL(name) static auto* const real = Real<decltype(::name)>(#name)

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
thread_local bool is_inside = false;

int OpenLog() {
  const char* path = getenv(tandem::tests::kLogVariable);
  if (path == nullptr) return -1;
  static auto* const real = Real<decltype(::open)>("open");
  const int low = real(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (low < 0) return -1;
  // A high number: programs may count on low descriptor numbers.
  const int high = fcntl(low, F_DUPFD_CLOEXEC, 500);
  close(low);
  return high;
}

int LogFd() {
  static const int fd = OpenLog();
  return fd;
}

const std::string& Root() {
  static const auto* const root = new std::string(getenv(tandem::tests::kRootVariable) != nullptr
                                                      ? getenv(tandem::tests::kRootVariable)
                                                      : "/nowhere");
  return *root;
}

// Holds the lock over all recorded processes. Nested calls, made by the recorder itself, do not
// lock.
class Turn {
 public:
  Turn() : is_first_(!is_inside && LogFd() >= 0) {
    if (!is_first_) return;
    is_inside = true;
    pthread_mutex_lock(&mutex);
    while (flock(LogFd(), LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~Turn() {
    if (!is_first_) return;
    const int saved = errno;
    flock(LogFd(), LOCK_UN);
    pthread_mutex_unlock(&mutex);
    is_inside = false;
    errno = saved;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  bool is_first() const { return is_first_; }

 private:
  const bool is_first_;
};

std::string LinkText(const std::string& link) {
  char text[4096];
  const ssize_t n = readlink(link.c_str(), text, sizeof text);
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : "";
}

std::string PathOfFd(int fd) { return LinkText("/proc/self/fd/" + std::to_string(fd)); }

std::string FullPath(int dir, const char* path) {
  if (path[0] == '/') return path;
  const std::string base = dir == AT_FDCWD ? LinkText("/proc/self/cwd") : PathOfFd(dir);
  return base + "/" + path;
}

bool IsBelowRoot(const std::string& path) {
  return path == Root() || path.starts_with(Root() + "/");
}

uint64_t NodeOf(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

void Log(IoHead head, const std::string& path, const std::string& second = "",
         const std::string& data = "") {
  const int saved = errno;
  head.path_bytes = static_cast<uint32_t>(path.size());
  head.second_bytes = static_cast<uint32_t>(second.size());
  head.data_bytes = static_cast<uint32_t>(data.size());
  std::string all(reinterpret_cast<const char*>(&head), sizeof head);
  all += path + second + data;
  static auto* const real = Real<decltype(::write)>("write");
  if (real(LogFd(), all.data(), all.size()) != static_cast<ssize_t>(all.size())) abort();
  errno = saved;
}

void LogPath(IoKind kind, const std::string& path, const std::string& second = "",
             uint32_t flags = 0) {
  if (!IsBelowRoot(path) && !IsBelowRoot(second)) return;
  IoHead head;
  head.kind = kind;
  head.flags = flags;
  Log(head, path, second);
}

void LogOpen(int fd, int flags, bool was_there) {
  if (fd < 0 || (flags & O_ACCMODE) == O_RDONLY) return;
  const std::string path = PathOfFd(fd);
  if (!IsBelowRoot(path)) return;
  IoHead head;
  head.kind = IoKind::kOpen;
  head.node = NodeOf(fd);
  head.flags = (was_there ? 0 : tandem::tests::kCreates) |
               ((flags & O_TRUNC) != 0 ? tandem::tests::kEmpties : 0);
  Log(head, path);
}

void LogNode(IoKind kind, int fd, int64_t offset = 0, const std::string& data = "") {
  const std::string path = PathOfFd(fd);
  if (!IsBelowRoot(path)) return;
  struct stat status {};
  if (fstat(fd, &status) != 0 || (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))) return;
  IoHead head;
  head.kind = kind;
  head.node = status.st_ino;
  head.offset = offset;
  Log(head, kind == IoKind::kWrite ? "" : path, "", data);
}

// Logs `n` bytes just written before the descriptor's current offset.
void LogAppended(int fd, ssize_t n, const std::string& data) {
  if (n <= 0) return;
  const int saved = errno;
  LogNode(IoKind::kWrite, fd, lseek(fd, 0, SEEK_CUR) - n, data.substr(0, static_cast<size_t>(n)));
  errno = saved;
}

std::string Joined(const iovec* parts, int n_parts) {
  std::string all;
  for (int i = 0; i < n_parts; ++i) {
    all.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  }
  return all;
}

// Reads back bytes that the kernel copied without passing them through user space.
std::string ReadBack(int fd, off_t offset, ssize_t n) {
  std::string bytes(static_cast<size_t>(n), '\0');
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  static auto* const real = Real<decltype(::open)>("open");
  const int again = real(path.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t got = pread(again, bytes.data(), bytes.size(), offset);
  close(again);
  if (got != n) abort();
  return bytes;
}

bool Exists(int dir, const char* path) {
  struct stat status {};
  const int saved = errno;
  const bool found = fstatat(dir, path, &status, 0) == 0;
  errno = saved;
  return found;
}

mode_t ModeOf(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

int FlagsOf(const char* mode) {
  if (mode[0] == 'w') return O_WRONLY | O_CREAT | O_TRUNC;
  if (mode[0] == 'a') return O_WRONLY | O_CREAT;
  return strchr(mode, '+') != nullptr ? O_RDWR : O_RDONLY;
}

int LoggedOpen(int (*real)(int, const char*, int, ...), int dir, const char* path, int flags,
               mode_t mode) {
  const Turn turn;
  const bool was_there = turn.is_first() && Exists(dir, path);
  const int fd = real(dir, path, flags, mode);
  if (turn.is_first()) LogOpen(fd, flags, was_there);
  return fd;
}

FILE* LoggedFopen(FILE* (*real)(const char*, const char*), const char* path, const char* mode) {
  const Turn turn;
  const bool was_there = turn.is_first() && Exists(AT_FDCWD, path);
  FILE* const file = real(path, mode);
  if (turn.is_first() && file != nullptr) LogOpen(fileno(file), FlagsOf(mode), was_there);
  return file;
}

int LoggedRename(int (*real)(int, const char*, int, const char*, unsigned), int from_dir,
                 const char* from, int to_dir, const char* to, unsigned flags) {
  const Turn turn;
  const int rc = real(from_dir, from, to_dir, to, flags);
  if (turn.is_first() && rc == 0) {
    LogPath(IoKind::kRename, FullPath(from_dir, from), FullPath(to_dir, to),
            (flags & RENAME_EXCHANGE) != 0 ? tandem::tests::kExchanges : 0);
  }
  return rc;
}

int LoggedMakeDir(int dir, const char* path, mode_t mode) {
  static auto* const real = Real<decltype(::mkdirat)>("mkdirat");
  const Turn turn;
  const int rc = real(dir, path, mode);
  struct stat status {};
  const std::string full = turn.is_first() ? FullPath(dir, path) : "";
  if (rc == 0 && IsBelowRoot(full) && stat(full.c_str(), &status) == 0) {
    IoHead head;
    head.kind = IoKind::kMakeDir;
    head.node = status.st_ino;
    Log(head, full);
  }
  return rc;
}

// Logs calls that change one path and return 0 on success.
template <typename Call>
int LoggedRemoval(int dir, const char* path, const Call& call) {
  const Turn turn;
  const int rc = call();
  if (turn.is_first() && rc == 0) LogPath(IoKind::kRemove, FullPath(dir, path));
  return rc;
}

template <typename Call>
int LoggedOnFd(IoKind kind, int fd, int64_t offset, const Call& call) {
  const Turn turn;
  const int rc = call();
  if (turn.is_first() && rc == 0) LogNode(kind, fd, offset);
  return rc;
}

}  // namespace

extern "C" {

#define OPEN(name, at)                                                   \
  int name(const char* path, int flags, ...) {                           \
    static auto* const real = Real<int(int, const char*, int, ...)>(at); \
    va_list arguments;                                                   \
    va_start(arguments, flags);                                          \
    const mode_t mode = ModeOf(flags, arguments);                        \
    va_end(arguments);                                                   \
    return LoggedOpen(real, AT_FDCWD, path, flags, mode);                \
  }
OPEN(open, "openat")
OPEN(open64, "openat64")
#undef OPEN

#define OPEN_AT(name)                                                       \
  int name(int dir, const char* path, int flags, ...) {                     \
    static auto* const real = Real<int(int, const char*, int, ...)>(#name); \
    va_list arguments;                                                      \
    va_start(arguments, flags);                                             \
    const mode_t mode = ModeOf(flags, arguments);                           \
    va_end(arguments);                                                      \
    return LoggedOpen(real, dir, path, flags, mode);                        \
  }
OPEN_AT(openat)
OPEN_AT(openat64)
#undef OPEN_AT

// The names that open(2) and openat(2) have under _FORTIFY_SOURCE.
int __open_2(const char* path, int flags) { return open(path, flags); }
int __open64_2(const char* path, int flags) { return open64(path, flags); }
int __openat_2(int dir, const char* path, int flags) { return openat(dir, path, flags); }
int __openat64_2(int dir, const char* path, int flags) { return openat64(dir, path, flags); }

int creat(const char* path, mode_t mode) { return open(path, O_WRONLY | O_CREAT | O_TRUNC, mode); }

FILE* fopen(const char* path, const char* mode) {
  REAL(fopen);
  return LoggedFopen(real, path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  REAL(fopen64);
  return LoggedFopen(real, path, mode);
}

ssize_t write(int fd, const void* bytes, size_t n) {
  REAL(write);
  const Turn turn;
  const ssize_t written = real(fd, bytes, n);
  if (turn.is_first() && written > 0) {
    LogAppended(fd, written,
                std::string(static_cast<const char*>(bytes), static_cast<size_t>(written)));
  }
  return written;
}

ssize_t writev(int fd, const iovec* parts, int n_parts) {
  REAL(writev);
  const Turn turn;
  const ssize_t written = real(fd, parts, n_parts);
  if (turn.is_first()) LogAppended(fd, written, Joined(parts, n_parts));
  return written;
}

#define PWRITE(name, offset_type)                                                          \
  ssize_t name(int fd, const void* bytes, size_t n, offset_type offset) {                  \
    REAL(name);                                                                            \
    const Turn turn;                                                                       \
    const ssize_t written = real(fd, bytes, n, offset);                                    \
    if (turn.is_first() && written > 0) {                                                  \
      LogNode(IoKind::kWrite, fd, offset,                                                  \
              std::string(static_cast<const char*>(bytes), static_cast<size_t>(written))); \
    }                                                                                      \
    return written;                                                                        \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
#undef PWRITE

#define SENDFILE(name, offset_type)                                                \
  ssize_t name(int out, int in, offset_type* offset, size_t n) noexcept {          \
    REAL(name);                                                                    \
    const Turn turn;                                                               \
    const ssize_t sent = real(out, in, offset, n);                                 \
    if (turn.is_first() && sent > 0 && IsBelowRoot(PathOfFd(out))) {               \
      LogAppended(out, sent, ReadBack(out, lseek(out, 0, SEEK_CUR) - sent, sent)); \
    }                                                                              \
    return sent;                                                                   \
  }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)
#undef SENDFILE

ssize_t copy_file_range(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t n,
                        unsigned flags) {
  REAL(copy_file_range);
  const Turn turn;
  const ssize_t sent = real(in, in_offset, out, out_offset, n, flags);
  if (turn.is_first() && sent > 0 && IsBelowRoot(PathOfFd(out))) {
    if (out_offset != nullptr) abort();  // not supported: no recorded program passes it
    LogAppended(out, sent, ReadBack(out, lseek(out, 0, SEEK_CUR) - sent, sent));
  }
  return sent;
}

int ftruncate(int fd, off_t size) noexcept {
  REAL(ftruncate);
  return LoggedOnFd(IoKind::kTruncate, fd, size, [&] { return real(fd, size); });
}
int ftruncate64(int fd, off64_t size) noexcept {
  REAL(ftruncate64);
  return LoggedOnFd(IoKind::kTruncate, fd, size, [&] { return real(fd, size); });
}
int truncate(const char* path, off_t size) noexcept {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  const int rc = ftruncate(fd, size);
  close(fd);
  return rc;
}

int fsync(int fd) {
  REAL(fsync);
  return LoggedOnFd(IoKind::kSync, fd, 0, [&] { return real(fd); });
}
int fdatasync(int fd) {
  REAL(fdatasync);
  return LoggedOnFd(IoKind::kSync, fd, 0, [&] { return real(fd); });
}

int rename(const char* from, const char* to) noexcept {
  REAL(renameat2);
  return LoggedRename(real, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int from_dir, const char* from, int to_dir, const char* to) noexcept {
  REAL(renameat2);
  return LoggedRename(real, from_dir, from, to_dir, to, 0);
}
int renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) noexcept {
  REAL(renameat2);
  return LoggedRename(real, from_dir, from, to_dir, to, flags);
}

int unlink(const char* path) noexcept {
  REAL(unlink);
  return LoggedRemoval(AT_FDCWD, path, [&] { return real(path); });
}
int unlinkat(int dir, const char* path, int flags) noexcept {
  REAL(unlinkat);
  return LoggedRemoval(dir, path, [&] { return real(dir, path, flags); });
}
int rmdir(const char* path) noexcept {
  REAL(rmdir);
  return LoggedRemoval(AT_FDCWD, path, [&] { return real(path); });
}
int remove(const char* path) noexcept {
  REAL(remove);
  return LoggedRemoval(AT_FDCWD, path, [&] { return real(path); });
}

int mkdir(const char* path, mode_t mode) noexcept { return LoggedMakeDir(AT_FDCWD, path, mode); }
int mkdirat(int dir, const char* path, mode_t mode) noexcept {
  return LoggedMakeDir(dir, path, mode);
}

int link(const char* from, const char* to) noexcept {
  REAL(link);
  const Turn turn;
  const int rc = real(from, to);
  if (turn.is_first() && rc == 0) {
    LogPath(IoKind::kLink, FullPath(AT_FDCWD, from), FullPath(AT_FDCWD, to));
  }
  return rc;
}
int symlink(const char* target, const char* path) noexcept {
  REAL(symlink);
  const Turn turn;
  const int rc = real(target, path);
  if (turn.is_first() && rc == 0) LogPath(IoKind::kSymlink, FullPath(AT_FDCWD, path), target);
  return rc;
}

#define MMAP(name, offset_type)                                                                    \
  void* name(void* at, size_t n, int protection, int flags, int fd, offset_type offset) noexcept { \
    REAL(name);                                                                                    \
    const Turn turn;                                                                               \
    void* const mapped = real(at, n, protection, flags, fd, offset);                               \
    const bool writes = (protection & PROT_WRITE) != 0 && (flags & MAP_SHARED) != 0;               \
    if (turn.is_first() && writes && fd >= 0 && mapped != MAP_FAILED) {                            \
      LogNode(IoKind::kMap, fd, offset);                                                           \
    }                                                                                              \
    return mapped;                                                                                 \
  }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)
#undef MMAP

// Recorded programs call this to log a promise.
void tandem_io_mark(const char* text) {
  const Turn turn;
  IoHead head;
  head.kind = IoKind::kMark;
  if (turn.is_first()) Log(head, text);
}

}  // extern "C"
