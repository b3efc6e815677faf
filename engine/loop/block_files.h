#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/io/sha256.h"
#include "engine/kv/prefix_index.h"
#include "engine/loop/block_dir.h"

namespace tandem::engine {

// Pieces of one size, each a file of a directory under its name in hex. A file is a header with the
// SHA-256 of name and content, then the content. A thread of its own writes; readers verify. A kill
// or a power cut leaves files that are whole, or that a reader drops. A full disk only stops the
// writing for a while. Processes may share a directory: each looks at it again after it wrote a
// sixteenth of the limit, so together they exceed the limit by that much each. Any thread.
class BlockFiles {
 public:
  using Clock = std::chrono::steady_clock;
  using Name = Sha256Digest;
  struct Options {
    std::filesystem::path dir;
    int64_t block_bytes = 0;
    int64_t limit_bytes = 0;         // of the directory; the files used least recently go first
    int64_t queue_bytes = 64 << 20;  // copies that wait for the writer; more are not kept
    int64_t reserve_bytes = 0;       // of its disk, which files of this directory leave free
    // How long a file is not asked for that could not be read, and nothing is written after an
    // error.
    std::chrono::milliseconds pause{30'000};
    // A lower limit because of others, from the bytes of this directory's files. Called when the
    // directory is listed, by the constructor's thread or the writer. It may throw Error; null:
    // none.
    std::function<int64_t(int64_t own_bytes)> share = {};
  };
  static constexpr int64_t kHeaderBytes = 64;

  // Creates the directory for its owner alone, and lists it. Throws as BlockDir, and
  // kInvalidArgument for a limit below one file.
  explicit BlockFiles(Options options);
  // Writes what is queued.
  ~BlockFiles();
  BlockFiles(const BlockFiles&) = delete;
  BlockFiles& operator=(const BlockFiles&) = delete;

  bool Has(const Name& name) const;
  // Queues a copy, which `fill` makes, unless the name is known or the queue is full. Never throws.
  void Write(const Name& name, const std::function<void(std::span<std::byte>)>& fill);
  // Reads and verifies. False: there is no such file, it cannot be read now, or it was damaged and
  // is removed. Throws std::bad_alloc. REQUIRES: block_bytes bytes.
  bool Read(const Name& name, std::span<std::byte> bytes);
  // Returns when the queue is empty.
  void Flush();

  int64_t n_files() const;
  int64_t n_queued() const;  // pieces that wait for the writer
  int64_t writes_total() const { return writes_total_; }
  int64_t reads_total() const { return reads_total_; }

 private:
  struct Piece {
    Name name;
    std::vector<std::byte> bytes;
  };
  using Order = std::list<Name>;  // least recently used first
  struct File {
    Order::iterator at;
    std::optional<Clock::time_point> unusable_until{};
  };
  using Files = std::unordered_map<Name, File, DigestHash>;

  void List();
  void WriteQueued();
  void WriteFile(const Piece& piece);
  bool IsUsable(const Name& name) const;
  void Add(const Name& name);
  void RemoveBeyondLimit();
  void Drop(const Name& name);
  void ReportUnusable(const std::filesystem::path& path, const std::string& why);
  int64_t FileBytes() const { return kHeaderBytes + options_.block_bytes; }

  const Options options_;
  const BlockDir dir_;
  std::atomic<int64_t> writes_total_{0};
  std::atomic<int64_t> reads_total_{0};
  int64_t unlisted_bytes_ = 0;  // written since the last listing; the writer's, as the next one
  int64_t share_bytes_ = 0;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  Order order_;
  Files files_;
  std::deque<Piece> queue_;
  std::unordered_map<Name, bool, DigestHash> queued_;  // a set
  bool is_writing_ = false;
  bool is_ending_ = false;
  bool has_reported_ = false;  // an unusable file
  bool has_reported_others_ = false;

  std::thread writer_;  // last: it uses the members above
};

}  // namespace tandem::engine
