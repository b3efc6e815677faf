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

// The identity of a model's weights, 64 hex digits: of one file its SHA-256, as sha256sum prints
// it; of several the SHA-256 over their digests, 32 bytes each, in the order of the files. So
// whoever has the digests of the files, having just written them, need not read them again.

// A file that weights lie in.
struct WeightFile {
  std::shared_ptr<const MappedFile> file;  // null: from memory
  std::span<const std::byte> bytes;
};

// Digests that are known without reading: file name -> SHA-256.
using FileHashes = std::map<std::string, Sha256Digest>;

// Reads every byte once, but of files whose digest is known; for files the result is remembered in
// `memo_dir`, when that is not empty, by path, size, mtime and inode. Files changed within the last
// two seconds are not remembered. A memo that cannot be read or written only costs time.
// `between_pieces` is called now and then while bytes are read, and may throw to give up. Any
// thread.
// Where `files` are parts of files, `part` names which parts, so that each part has its own memo.
std::string ContentHashOf(std::span<const WeightFile> files, const std::filesystem::path& memo_dir,
                          const std::function<void()>& between_pieces, const FileHashes& known,
                          std::string_view part = {});

}  // namespace tandem::engine
