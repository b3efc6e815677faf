#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/base/error.h"

namespace tandem::server {

// A file of this machine. The cache keeps it while a copy of `pin` lives.
struct LocalBlob {
  std::filesystem::path path;
  std::shared_ptr<void> pin = {};
};

// Blobs in a directory, up to a number of bytes. The least recently used ones make room for others;
// pinned ones stay, so the directory may hold more for a while. Any thread.
//
// A file has its name only when it is whole. `NAME.fetch` and `NAME.fetch.incomplete` are of a
// fetch.
class BlobCache {
 public:
  using MayEvict = std::function<bool(const std::string& name)>;
  // Makes the path the whole, checked content of a blob.
  using Fetch = std::function<void(const std::filesystem::path& to)>;

  // Takes over the files in `dir`, which must exist, and removes unfinished fetches.
  BlobCache(std::filesystem::path dir, int64_t max_bytes);
  BlobCache(const BlobCache&) = delete;
  BlobCache& operator=(const BlobCache&) = delete;

  // The blob, fetched if it is not there with this size. Concurrent callers share one fetch and its
  // error. Throws what `fetch` throws, and kIo.
  LocalBlob Get(const std::string& name, int64_t bytes, const Fetch& fetch);
  // Pins a file that the caller has put, or is about to put, into the directory.
  LocalBlob Pin(const std::string& name);
  // Removes the file. A reader that has it open goes on.
  void Forget(const std::string& name);
  // Removes least recently used files until `extra` bytes more fit. Asks `may_evict` before each.
  void MakeRoom(int64_t extra, const MayEvict& may_evict);

 private:
  struct Entry {
    uint64_t last_use = 0;
    int pins = 0;
  };
  struct Loading {
    bool has_ended = false;
    std::optional<Error> error = {};
  };

  LocalBlob PinLocked(const std::string& name);
  void Unpin(const std::string& name);
  bool IsThere(const std::string& name, int64_t bytes) const;
  void Load(const std::string& name, const Fetch& fetch) const;

  const std::filesystem::path dir_;
  const int64_t max_bytes_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable loaded_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::shared_ptr<Loading>> loading_;
  uint64_t uses_ = 0;
};

}  // namespace tandem::server
