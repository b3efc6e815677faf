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

// A stored value in a form that a resuming writer can restore: its length, and its bytes if it is
// inlined.
struct StoredValue {
  uint64_t bytes = 0;
  std::optional<std::string> inlined;
  bool operator==(const StoredValue&) const = default;
};

// Stores the values of a checkpoint for KeyValues. One thread.
//
// Resume: open a new writer on the same directory, call Restore() for the values already put, in
// order, then Put() the rest.
class KeyValueWriter {
 public:
  virtual ~KeyValueWriter() = default;
  // Stores a value. Each key comes once, in any order. Throws kIo.
  virtual StoredValue Put(const std::string& key, std::span<const std::byte> value) = 0;
  // Takes the place of Put for a value already put; call it before the first Put. Returns false if
  // the directory does not have the value; resuming is then impossible.
  virtual bool Restore(const std::string& key, const StoredValue& value) = 0;
  // Files with values, relative to the directory. At the first Put it may hold no other files.
  virtual std::vector<std::string> Files() const = 0;
  // Returns the files and directories changed since the last call.
  virtual std::vector<std::filesystem::path> TakeChanged() = 0;
  // Completes the store. Values may not be readable before.
  virtual void Finish() = 0;
};

// Stores each value in a file below `dir`, named by its key. Refuses keys that leave `dir`.
std::unique_ptr<KeyValueWriter> WriteFileTree(const std::filesystem::path& dir);

// Identity of an item, independent of its content; a resumed writer uses the same stamp.
struct OrbaxStamp {
  std::string id;       // 32 hexadecimal digits, used in file names
  int64_t time_ns = 0;  // since 1970
};
OrbaxStamp NewOrbaxStamp();  // random id, current time
bool IsOrbaxId(const std::string& id);

// Orbax's sizes; tests use others.
struct OcdbtSizes {
  size_t max_inline_value_bytes = 1024;         // larger values go to data files
  size_t max_decoded_node_bytes = 100000000;    // larger nodes are split
  uint64_t max_file_bytes = uint64_t{1} << 31;  // at this size a new data file is started
};
// Writes an OCDBT database of one version: manifest.ocdbt, and data files in d/. Keeps keys and
// inlined values in memory.
std::unique_ptr<KeyValueWriter> WriteOcdbt(const std::filesystem::path& dir,
                                           const OrbaxStamp& stamp, const OcdbtSizes& sizes = {});

}  // namespace tandem::convert
