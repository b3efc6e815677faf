#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/http/api_keys.h"
#include "server/keys/key_store.h"
#include "server/keys/key_usage.h"

namespace tandem::server {

// The managed keys of a running server: hands the valid keys of the database to ApiKeys, and
// follows changes that `tandem keys` or another server makes. A thread looks every `interval`, so a
// created or revoked key takes effect within that time. Changes through this class take effect at
// once. Thread-safe.
//
// If the file becomes unreadable or vanishes, the known keys stay in force, and the log says so.
class ManagedKeys {
 public:
  struct Options {
    std::filesystem::path file;
    DatabaseSource shared = {};  // of replicas, instead of the file
    bool must_exist = false;     // creates a missing file; else it may appear later
    std::chrono::milliseconds interval{1000};
  };
  // Reads the keys and starts the thread. `keys` and `usage` must outlive it. Throws as KeyStore.
  ManagedKeys(Options options, ApiKeys& keys, const KeyUsage& usage);
  ~ManagedKeys();
  ManagedKeys(const ManagedKeys&) = delete;
  ManagedKeys& operator=(const ManagedKeys&) = delete;

  const std::filesystem::path& file() const { return options_.file; }

  // Create the file if it is missing. They throw as KeyStore.
  CreatedKey Create(const NewKey& about);
  KeyRecord Revoke(const std::string& id_or_name);
  // As last read from the file; revoked keys too, in the order of creation.
  std::vector<KeyRecord> List() const;

  // Looks at the file now, as the thread does. Throws what reading throws.
  void Refresh();

 private:
  using FileIdentity = std::pair<uint64_t, uint64_t>;  // device, inode

  std::optional<FileIdentity> Identity() const;
  // The next four REQUIRE mutex_ held.
  void OpenCurrent(bool create);
  void Reload();
  void RefreshLocked();
  void NoteUses();
  void Run();
  void ReportFault(std::string_view text);

  const Options options_;
  ApiKeys& keys_;
  const KeyUsage& usage_;

  mutable std::mutex mutex_;  // guards the next four; held while the file is read
  std::unique_ptr<KeyStore> store_;
  std::optional<FileIdentity> opened_;
  std::optional<int64_t> change_count_;
  std::string last_fault_;  // logged already

  mutable std::mutex records_mutex_;  // guards records_; never held while the disk works
  std::vector<KeyRecord> records_;

  std::mutex stop_mutex_;  // guards is_stopping_
  std::condition_variable stop_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::server
