#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "engine/base/error.h"

namespace tandem::engine {

// The few system calls this room is built on, with errors that name the path. For this
// room and for others that write files piece by piece (server/hub); any thread.

// Owns one file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return fd_; }
  // Closes and reports what close says: on some file systems a full disk shows only here.
  void Close(const std::filesystem::path& path);

 private:
  int fd_ = -1;
};

// "could not <verb> <path>: <errno's text>" as kIo, or as kNotFound when nothing is there;
// std::bad_alloc when it was memory that the system did not have.
[[noreturn]] void ThrowSystemError(const char* verb, const std::filesystem::path& path,
                                   int error_number);

// Opens a regular file; anything else under that name (a directory, a pipe) is refused, so that no
// reader can be made to wait. `status` receives what fstat says.
FileDescriptor OpenRegularFile(const std::filesystem::path& path, struct stat& status);
// Creates a file that must not exist yet (kAlreadyExists) with mode 0644 less umask.
FileDescriptor CreateNewFile(const std::filesystem::path& path);

void WriteAll(const FileDescriptor& file, std::span<const std::byte> bytes,
              const std::filesystem::path& path);
// The same at an offset, from the beginning of the file; several threads may.
void WriteAllAt(const FileDescriptor& file, std::span<const std::byte> bytes, int64_t offset,
                const std::filesystem::path& path);
// Reads exactly so many; throws kIo where the file ends before.
void ReadAllAt(const FileDescriptor& file, std::span<std::byte> bytes, int64_t offset,
               const std::filesystem::path& path);
// Makes the file so long and, where the file system can, keeps room for it, so that a full disk
// shows now.
void Reserve(const FileDescriptor& file, int64_t bytes, const std::filesystem::path& path);
void Sync(const FileDescriptor& file, const std::filesystem::path& path);
// fsyncs what is already under `path`, be it a file or a directory.
void SyncPath(const std::filesystem::path& path);

// The directory that holds `path`; "." for a bare file name.
std::filesystem::path ParentOf(const std::filesystem::path& path);

}  // namespace tandem::engine
