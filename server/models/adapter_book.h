#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/blobs/blob_store.h"
#include "server/database/database.h"

namespace tandem::server {

// An adapter that every replica serves.
struct SharedAdapter {
  std::string name;
  std::string base;         // id of a model that every replica serves
  std::string path;         // absolute, of the replica that loaded it: see AdapterBook::PathOf
  std::string fingerprint;  // SHA-256 of its content, in hexadecimal
  int64_t created_at = 0;   // seconds since 1970
};

// The adapters that were loaded while the replicas run, in their database. Thread-safe. Methods
// throw as Database.
//
// Every change also writes `adapters.lock`, for backups and for comparisons:
//
//   {"format":"tandem-adapters","version":1,"adapters":[{"name":…,"base":…,"path":…,"sha256":…}]}
class AdapterBook {
 public:
  // `lock_file` is on the disk that the replicas share. Empty: no file.
  explicit AdapterBook(const DatabaseSource& shared, std::filesystem::path lock_file = {})
      : database_(shared), lock_file_(std::move(lock_file)), blobs_(SharedDirectory()) {}
  // For replicas with a data directory each: adapters are trees `adapters/<fingerprint>` of the
  // store, fetched to `dir`. There is no file.
  AdapterBook(const DatabaseSource& shared, std::shared_ptr<BlobStore> blobs,
              std::filesystem::path dir)
      : database_(shared), blobs_(std::move(blobs)), dir_(std::move(dir)) {}

  // Throws also kIo and kUnavailable (insufficient_storage) if the file cannot be written, and as
  // BlobStore; then nothing changes.
  void Put(const SharedAdapter& adapter);
  // The adapter's directory on this replica, fetched if need be. Throws as BlobStore.
  std::string PathOf(const SharedAdapter& adapter);
  void Remove(const std::string& name);
  std::vector<SharedAdapter> List();  // sorted by name

 private:
  // The next two REQUIRE mutex_ held.
  std::vector<SharedAdapter> ListLocked();
  void WriteLockFile();

  std::mutex mutex_;  // guards database_
  Database database_;
  const std::filesystem::path lock_file_;
  const std::shared_ptr<BlobStore> blobs_;  // never null
  const std::filesystem::path dir_;
};

}  // namespace tandem::server
