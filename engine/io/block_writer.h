#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "engine/base/aligned_buffer.h"
#include "engine/io/posix_file.h"

namespace tandem::engine {

// Unit in which large files are written and mapped: a huge page of x86-64.
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Writes a new file front to back in whole, aligned blocks of kHugePageBytes. File systems with
// large folios (ext4 since Linux 6.16, XFS) keep such a block as one huge page, and MappedFile maps
// it as one. A matrix-vector product then reads weights as fast as from anonymous huge pages; 4 KiB
// pages cost 15-35 % of that speed. On other file systems the bytes are the same. One thread.
class BlockWriter {
 public:
  // Throws kAlreadyExists when the file exists, or kIo.
  explicit BlockWriter(const std::filesystem::path& path);

  void Write(std::span<const std::byte> bytes);  // throws kIo
  // Writes the rest and closes the file. Without Finish the file lacks its tail. Throws kIo.
  void Finish();

 private:
  const std::filesystem::path path_;
  FileDescriptor file_;
  AlignedBuffer block_;
  size_t filled_ = 0;  // bytes of block_ not yet written
};

}  // namespace tandem::engine
