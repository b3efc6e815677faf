#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "engine/base/error.h"

namespace tandem::engine {

// System calls with errors that name the path. For this room and for rooms that write files piece
// by piece (such as engine/hub). Any thread.

// Owns one file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return fd_; }
  // Closes and reports an error of close: on some file systems a full disk shows only here.
  void Close(const std::filesystem::path& path);

 private:
  int fd_ = -1;
};

// Throws "could not <verb> <path>: <errno's text>" as kIo, or as kNotFound for ENOENT and ENOTDIR.
// A full disk has the reason kDiskFullReason. Throws std::bad_alloc for ENOMEM.
[[noreturn]] void ThrowSystemError(const char* verb, const std::filesystem::path& path,
                                   int error_number);

// Opens a regular file and refuses everything else (a directory, a pipe), so that no reader can
// block. `status` receives the result of fstat.
FileDescriptor OpenRegularFile(const std::filesystem::path& path, struct stat& status);
// Creates a file with mode 0644 less umask. Throws kAlreadyExists when the path exists.
FileDescriptor CreateNewFile(const std::filesystem::path& path);

void WriteAll(const FileDescriptor& file, std::span<const std::byte> bytes,
              const std::filesystem::path& path);
// Writes at `offset` bytes from the start of the file. Several threads may write at once.
void WriteAllAt(const FileDescriptor& file, std::span<const std::byte> bytes, int64_t offset,
                const std::filesystem::path& path);
// Reads exactly bytes.size() bytes. Throws kIo when the file ends before.
void ReadAllAt(const FileDescriptor& file, std::span<std::byte> bytes, int64_t offset,
               const std::filesystem::path& path);
// Sets the file's length and, where the file system can, allocates its blocks, so that a full disk
// shows now.
void Reserve(const FileDescriptor& file, int64_t bytes, const std::filesystem::path& path);
void Sync(const FileDescriptor& file, const std::filesystem::path& path);
// Bytes of the disk below `dir` that this process may still write; INT64_MAX when unknown.
int64_t FreeDiskBytes(const std::filesystem::path& dir);
// fsyncs the existing file or directory at `path`.
void SyncPath(const std::filesystem::path& path);

// The directory that holds `path`; "." for a bare file name.
std::filesystem::path ParentOf(const std::filesystem::path& path);

}  // namespace tandem::engine
