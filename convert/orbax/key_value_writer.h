#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace tandem::convert {

// Where arrays of a checkpoint are put: what KeyValues reads. One thread.
class KeyValueWriter {
 public:
  virtual ~KeyValueWriter() = default;
  // Each key once, in any order. Throws kIo.
  virtual void Put(const std::string& key, std::span<const std::byte> value) = 0;
  // Everything put is there once this returns, and nothing may be before.
  virtual void Finish() = 0;
};

// A file for each value, below `dir`, by its key. Keys that would leave it are refused.
std::unique_ptr<KeyValueWriter> WriteFileTree(const std::filesystem::path& dir);

// The sizes that Orbax sets; tests set others.
struct OcdbtSizes {
  size_t max_inline_value_bytes = 1024;         // larger ones lie outside of the nodes
  size_t max_decoded_node_bytes = 100000000;    // a node that would have more is split
  uint64_t max_file_bytes = uint64_t{1} << 31;  // a data file is not begun on once it has these
};
// manifest.ocdbt and data files in d/: a database of one version. Keeps the keys and the small
// values in memory.
std::unique_ptr<KeyValueWriter> WriteOcdbt(const std::filesystem::path& dir,
                                           const OcdbtSizes& sizes = {});

}  // namespace tandem::convert
