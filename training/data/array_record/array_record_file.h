#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "training/data/array_record/chunk_cache.h"

namespace tandem::training {

// A file of Google's ArrayRecord: Riegeli chunks of records, then a footer and a postscript in the
// last block of 64 KiB. Reads chunks without compression and with zstd; refuses transposed chunks,
// Brotli and Snappy with the option of the writer that avoids them. Checks every hash. Any thread.
class ArrayRecordFile {
 public:
  static constexpr uint64_t kMaxChunkBytes = uint64_t{1} << 30;  // unpacked

  // Maps the file and reads the header of every chunk. Throws kNotFound / kIo, and kDataLoss for a
  // damaged or unfinished file. Files may share a cache; without one the file has its own.
  static std::shared_ptr<const ArrayRecordFile> Open(const std::filesystem::path& path,
                                                     std::shared_ptr<ChunkCache> cache = nullptr);
  // Reads from bytes that `owner` keeps alive.
  static std::shared_ptr<const ArrayRecordFile> Of(std::span<const std::byte> bytes,
                                                   std::shared_ptr<const void> owner,
                                                   const std::string& name,
                                                   std::shared_ptr<ChunkCache> cache = nullptr);

  int64_t size() const { return n_records_; }
  const std::string& name() const { return name_; }
  // The bytes of record i. Throws kDataLoss for a damaged chunk. REQUIRES: 0 <= i < size().
  std::string Read(int64_t i) const;

 private:
  // A chunk of records.
  struct Chunk {
    uint64_t begin = 0;  // in the file
    int64_t first_record = 0;
    int64_t n_records = 0;
  };
  struct Header {
    uint64_t data_size = 0;
    uint64_t data_hash = 0;
    char type = 0;
    uint64_t n_records = 0;
    uint64_t decoded_size = 0;
    uint64_t end = 0;  // of the chunk in the file
  };

  ArrayRecordFile(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                  std::string name, std::shared_ptr<ChunkCache> cache)
      : bytes_(bytes),
        owner_(std::move(owner)),
        name_(std::move(name)),
        cache_(cache ? std::move(cache) : std::make_shared<ChunkCache>()),
        file_(cache_->NewFile()) {}

  void Index();
  uint64_t FooterOffset() const;
  std::vector<std::byte> Gather(uint64_t* at, uint64_t n) const;
  Header ReadHeader(uint64_t begin) const;
  ArrayRecords ReadChunk(uint64_t begin) const;
  [[noreturn]] void Damaged(uint64_t at, const std::string& what) const;

  const std::span<const std::byte> bytes_;
  const std::shared_ptr<const void> owner_;
  const std::string name_;
  const std::shared_ptr<ChunkCache> cache_;  // of chunks with several records
  const int64_t file_;                       // this file's number in it
  std::vector<Chunk> chunks_;
  int64_t n_records_ = 0;
};

}  // namespace tandem::training
