#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

namespace tandem::training {

// The bytes of a text file, unpacked if it is compressed. `owner` keeps them alive.
struct TextBytes {
  // Limit of the unpacked size: unpacked text is held in memory, a plain file is mapped.
  static constexpr size_t kMaxUnpacked = size_t{4} << 30;

  std::shared_ptr<const void> owner;
  std::string_view text;
};

// Maps a file; unpacks gzip (also several members) and zstd (also several frames), which it
// recognises by their first bytes. Throws kNotFound / kIo, and kDataLoss for a damaged or truncated
// archive, or one of more than kMaxUnpacked bytes.
TextBytes OpenTextBytes(const std::filesystem::path& path);

// "rows.jsonl.gz" without ".gz", ".zst" or ".zstd".
std::filesystem::path WithoutCompression(const std::filesystem::path& path);

}  // namespace tandem::training
