#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tandem::convert {

// How a value was put, for a writer that goes on: its length, and itself where no file has it.
struct StoredValue {
  uint64_t bytes = 0;
  std::optional<std::string> inlined;
  bool operator==(const StoredValue&) const = default;
};

// Where arrays of a checkpoint are put: what KeyValues reads. One thread. A writer may go on with
// what another left in the same directory that had put the same values in the same order, the first
// of which it is told by Restore.
class KeyValueWriter {
 public:
  virtual ~KeyValueWriter() = default;
  // Each key once, in any order. Throws kIo.
  virtual StoredValue Put(const std::string& key, std::span<const std::byte> value) = 0;
  // In place of Put, before the first; false where the directory does not have the value so: then
  // nothing can be gone on with.
  virtual bool Restore(const std::string& key, const StoredValue& value) = 0;
  // Files that values lie in, from the directory on. No other may be there at the first Put.
  virtual std::vector<std::string> Files() const = 0;
  // Files and directories that have changed since the last call.
  virtual std::vector<std::filesystem::path> TakeChanged() = 0;
  // Everything put is there once this returns, and nothing may be before.
  virtual void Finish() = 0;
};

// A file for each value, below `dir`, by its key. Keys that would leave it are refused.
std::unique_ptr<KeyValueWriter> WriteFileTree(const std::filesystem::path& dir);

// What an item of a checkpoint has of its own, whatever is in it: the same for a writer that goes
// on.
struct OrbaxStamp {
  std::string id;       // 32 digits of a hexadecimal number, in the names of its files
  int64_t time_ns = 0;  // since 1970
};
OrbaxStamp NewOrbaxStamp();  // at random, and now
bool IsOrbaxId(const std::string& id);

// The sizes that Orbax sets; tests set others.
struct OcdbtSizes {
  size_t max_inline_value_bytes = 1024;         // larger ones lie outside of the nodes
  size_t max_decoded_node_bytes = 100000000;    // a node that would have more is split
  uint64_t max_file_bytes = uint64_t{1} << 31;  // a data file is not begun on once it has these
};
// manifest.ocdbt and data files in d/: a database of one version. Keeps the keys and the small
// values in memory.
std::unique_ptr<KeyValueWriter> WriteOcdbt(const std::filesystem::path& dir,
                                           const OrbaxStamp& stamp, const OcdbtSizes& sizes = {});

}  // namespace tandem::convert
