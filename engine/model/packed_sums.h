#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/thread_pool.h"
#include "engine/io/mapped_file.h"

namespace tandem::engine {

// Checksums of a packed file, kept beside it: little endian, one CRC-32C for each piece of
// kSumPieceBytes (the last piece may be shorter), then the CRC-32C of all these. They find bytes
// that the disk or another program changed; they are no defence against someone who writes both.
inline constexpr size_t kSumPieceBytes = size_t{4} << 20;

// Computes the sums while the file is written.
class PackedSums {
 public:
  void Add(std::span<const std::byte> bytes);
  std::string Finish();

 private:
  void EndPiece();

  std::string sums_;
  uint32_t crc_ = 0;
  size_t in_piece_ = 0;
};

// The sums in a file; nothing when there is none that could be sums.
std::optional<std::string> ReadPackedSums(const std::filesystem::path& path);

// Reads the whole file on all threads of the pool. What is wrong with it, as half a sentence, or
// nothing when every piece has its sum. The file's pages leave the process's memory again.
std::optional<std::string> FindDamage(const MappedFile& file, std::string_view sums,
                                      ThreadPool& pool);

}  // namespace tandem::engine
