#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/io/sha256.h"
#include "engine/kv/prefix_index.h"

namespace tandem::engine {

// Pieces of one size, each a file of a directory under its name in hex. A file is a header with the
// SHA-256 of name and content, then the content. A thread of its own writes; readers verify. A kill
// or a power cut leaves files that are whole, or that a reader drops. A full disk only stops the
// writing for a while. Two processes may share a directory. Any thread.
class BlockFiles {
 public:
  using Name = Sha256Digest;
  struct Options {
    std::filesystem::path dir;
    int64_t block_bytes = 0;
    int64_t limit_bytes = 0;         // of the directory; the files used least recently go first
    int64_t queue_bytes = 64 << 20;  // copies that wait for the writer; more are not kept
  };
  static constexpr int64_t kHeaderBytes = 64;

  // Creates the directory for its owner alone, and lists it. Throws kIo, and kInvalidArgument for a
  // limit below one file.
  explicit BlockFiles(Options options);
  // Writes what is queued.
  ~BlockFiles();
  BlockFiles(const BlockFiles&) = delete;
  BlockFiles& operator=(const BlockFiles&) = delete;

  bool Has(const Name& name) const;
  // Queues a copy, which `fill` makes, unless the name is known or the queue is full. Never throws.
  void Write(const Name& name, const std::function<void(std::span<std::byte>)>& fill);
  // Reads and verifies. False: there is no such file, or it was damaged and is removed. Never
  // throws. REQUIRES: block_bytes bytes.
  bool Read(const Name& name, std::span<std::byte> bytes);
  // Returns when the queue is empty.
  void Flush();

  int64_t n_files() const;
  int64_t writes_total() const { return writes_total_; }
  int64_t reads_total() const { return reads_total_; }

 private:
  struct Piece {
    Name name;
    std::vector<std::byte> bytes;
  };
  using Order = std::list<Name>;  // least recently used first

  void List();
  void WriteQueued();
  void WriteFile(const Piece& piece);
  void Add(const Name& name);
  void Drop(const Name& name);
  void ReportUnusable(const std::filesystem::path& path, const std::string& why);
  std::filesystem::path PathOf(const Name& name) const { return options_.dir / ToHex(name); }
  int64_t FileBytes() const { return kHeaderBytes + options_.block_bytes; }

  const Options options_;
  std::atomic<int64_t> writes_total_{0};
  std::atomic<int64_t> reads_total_{0};

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  Order order_;
  std::unordered_map<Name, Order::iterator, DigestHash> files_;
  std::deque<Piece> queue_;
  std::unordered_map<Name, bool, DigestHash> queued_;  // a set
  bool is_writing_ = false;
  bool is_ending_ = false;
  bool has_reported_ = false;  // an unusable file

  std::thread writer_;  // last: it uses the members above
};

}  // namespace tandem::engine
