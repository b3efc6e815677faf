#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "engine/base/aligned_buffer.h"
#include "engine/io/posix_file.h"

namespace tandem::engine {

// The unit in which large files are written and mapped: a huge page of x86-64.
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Writes a new file front to back in whole, aligned blocks of kHugePageBytes. File systems with
// large folios (ext4 since Linux 6.16, XFS) keep such a block as one huge page, and MappedFile then
// maps it as one: a matrix-vector product reads weights written so at the speed of anonymous huge
// pages, where 4 KiB pages cost 15-35 % of it. Elsewhere the bytes are the same and only that is
// lost. One thread.
class BlockWriter {
 public:
  // Throws kAlreadyExists if there is such a file, kIo.
  explicit BlockWriter(const std::filesystem::path& path);

  void Write(std::span<const std::byte> bytes);  // throws kIo
  // Writes what is left and closes; without it the file lacks its tail. Throws kIo.
  void Finish();

 private:
  const std::filesystem::path path_;
  FileDescriptor file_;
  AlignedBuffer block_;
  size_t filled_ = 0;  // bytes of block_ that wait
};

}  // namespace tandem::engine
