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

// Checksums of a packed file, in a file of their own. Little endian: one CRC-32C for each piece of
// kSumPieceBytes (the last piece may be shorter), then the CRC-32C of all these. They detect bytes
// that the disk or another program changed. They do not protect against an attacker, who can write
// both files.
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

// The sums in a file; nullopt when its size cannot be read or exceeds 64 MiB.
std::optional<std::string> ReadPackedSums(const std::filesystem::path& path);

// Reads the whole file on all threads of the pool. Returns a clause that describes the damage, or
// nullopt when every piece matches its sum. Releases the file's pages afterwards.
std::optional<std::string> FindDamage(const MappedFile& file, std::string_view sums,
                                      ThreadPool& pool);

}  // namespace tandem::engine
