#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::training {

// The records of a chunk.
struct ArrayRecords {
  std::vector<std::byte> bytes;  // of all records
  std::vector<uint64_t> ends;    // of each record in them

  size_t size() const { return ends.size(); }
  std::string_view operator[](size_t i) const {
    const auto begin = static_cast<size_t>(i == 0 ? 0 : ends[i - 1]);
    return {reinterpret_cast<const char*>(bytes.data()) + begin,
            static_cast<size_t>(ends[i]) - begin};
  }
  int64_t memory_bytes() const {
    return static_cast<int64_t>(bytes.size() + ends.size() * sizeof(uint64_t));
  }
};

// Decoded chunks of the files of a data set, least recently used out first. Records in a shuffled
// order meet a chunk many times. Any thread.
class ChunkCache {
 public:
  // The newest chunk stays even when it exceeds the limit.
  explicit ChunkCache(int64_t max_bytes = int64_t{256} << 20) : max_bytes_(max_bytes) {}

  // A number for the chunks of one file.
  int64_t NewFile();
  // Null when the chunk is not there.
  std::shared_ptr<const ArrayRecords> Find(int64_t file, size_t chunk);
  void Add(int64_t file, size_t chunk, std::shared_ptr<const ArrayRecords> records);

 private:
  using Key = std::pair<int64_t, size_t>;  // file, chunk
  struct Entry {
    Key key;
    std::shared_ptr<const ArrayRecords> records;
  };

  const int64_t max_bytes_;
  std::mutex mutex_;                                // guards the following
  std::list<Entry> entries_;                        // most recently used first
  std::map<Key, std::list<Entry>::iterator> find_;  // by key
  int64_t bytes_ = 0;
  int64_t n_files_ = 0;
};

}  // namespace tandem::training
