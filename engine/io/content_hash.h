#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/mapped_file.h"
#include "engine/io/sha256.h"

namespace tandem::engine {

// Identity of a model's weights: 64 hex digits. For one file it is its SHA-256, as sha256sum prints
// it. For several files it is the SHA-256 over their digests, 32 bytes each, in the order of the
// files. A writer that has the digests so need not read the files again.

// A file that holds weights.
struct WeightFile {
  std::shared_ptr<const MappedFile> file;  // null: from memory
  std::span<const std::byte> bytes;
};

// Known digests, which spare the reading: file name -> SHA-256.
using FileHashes = std::map<std::string, Sha256Digest>;

// Reads every byte once, except of files in `known`. Files changed within the last two seconds are
// not remembered. For other files the result is stored in `memo_dir`, if that is not empty, under
// their paths, sizes, mtimes, devices and inodes. A memo that cannot be read or written costs time
// only. `between_pieces` is called every 32 MiB of reading and may throw to stop. When `files` are
// ranges of files, `part` names the ranges, so that each has its own memo. Any thread.
std::string ContentHashOf(std::span<const WeightFile> files, const std::filesystem::path& memo_dir,
                          const std::function<void()>& between_pieces, const FileHashes& known,
                          std::string_view part = {});

}  // namespace tandem::engine
