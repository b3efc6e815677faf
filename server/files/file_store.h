#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "engine/base/error.h"
#include "server/blobs/blob_cache.h"
#include "server/blobs/blob_store.h"
#include "server/database/database.h"
#include "server/files/blob_garbage.h"
#include "server/files/temporary_file.h"
#include "server/http/request_pool.h"

namespace tandem::server {

// An uploaded file as the API shows it.
struct StoredFile {
  std::string id;  // "file-" and 24 hexadecimal digits
  int64_t bytes = 0;
  int64_t created_at = 0;  // seconds since 1970
  std::string filename;    // the client's name for it; never a path on this machine
  std::string purpose;
  std::optional<int64_t> expires_at;
  std::optional<int64_t> owner;  // client number of the key that made it; nullopt: no owner
  std::string blob = {};         // its name in the object store; empty: not in one
  std::string sha256 = {};       // of a blob
};

// Properties of a new file, from the upload form.
struct NewFile {
  std::string filename;
  std::string purpose;
  std::optional<int64_t> expires_after_s;
  std::string id = {};  // from NewId, not used yet; empty: the store chooses
  std::optional<int64_t> owner = {};
};

struct FileFilter {
  std::optional<std::string> purpose = {};
  size_t limit = 10000;
  bool oldest_first = false;
  std::string after = {};  // id of the last file of the previous page; empty: the first page
  std::optional<int64_t> viewer = {};  // only files of this owner and files without an owner
};

struct FilePage {
  std::vector<StoredFile> files;
  bool has_more = false;
};

// The last path component of a client's file name, without control characters and cut to 255 bytes
// of UTF-8. nullopt if the result is empty, "." or "..".
std::optional<std::string> SafeFileName(std::string_view name);

// The uploaded files: bytes in DATA_DIR/files under our ids, and a table of the server's database.
// Any thread. Locks are taken in the order files, jobs.
//
// Add() syncs the bytes before the table lists the file. Delete() renames the bytes to
// `ID.deleted`, which decides the deletion and needs no disk space; the row follows. The
// constructor finishes deletions and removes the unfinished uploads (`ID.part`) of a killed server.
// It moves files that the table does not list to files/unknown/ and never deletes them: the
// database may be new or restored from a backup. Replicas do all this only to entries that are
// older than an hour, since another replica may work on younger ones.
//
// With a remote BlobStore the bytes are objects, and DATA_DIR/blobs is a cache of them. An upload
// is an object before the table lists it, and a deletion removes the row first. BlobGarbage
// remembers the objects without a row.
class FileStore {
 public:
  struct Options {
    std::filesystem::path data_dir;           // must exist and be locked (JobStore)
    DatabaseSource shared = {};               // of replicas, with data_dir; instead of a file in it
    std::shared_ptr<BlobStore> blobs = {};    // null: SharedDirectory()
    std::string replica = {};                 // this process; needed for a remote store
    int64_t cache_bytes = int64_t{16} << 30;  // of a remote store
    int64_t max_file_bytes = int64_t{512} << 20;
    std::function<int64_t()> now = {};  // seconds since 1970; empty: the system's clock
    // Whether a job still needs the file; called with the store's lock held. Empty: no file is
    // needed.
    std::function<bool(const std::string& id)> is_in_use = {};
  };
  explicit FileStore(Options options);
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  int64_t max_file_bytes() const { return options_.max_file_bytes; }

  static std::string NewId();
  // Creates the temporary file of an upload. Throws kIo, and kUnavailable (insufficient_storage).
  TemporaryFile BeginFile();
  // Publishes a file: on disk and in the table at return. Throws as BeginFile, and as Database. If
  // the answer of the database was lost, the table may list the file, so its bytes stay.
  StoredFile Add(TemporaryFile file, const NewFile& about);

  std::optional<StoredFile> Find(const std::string& id);
  // An unknown `after` gives an empty page.
  FilePage List(const FileFilter& filter);
  // Works on a full disk. Throws kNotFound (file_not_found), kAlreadyExists (in_use), and kIo if
  // the rename fails.
  void Delete(const std::string& id);
  // The path of a file's bytes, which may have to be fetched first: see Local.
  std::filesystem::path PathOf(const std::string& id) const { return dir_ / id; }
  // The bytes of a file on this machine. May wait for the object store. Throws kNotFound, and as
  // BlobStore.
  LocalBlob Local(const std::string& id);
  // Removes the objects of deleted files and of uploads whose replica has ended. Waits for the
  // store; a failure is logged, and the next call tries again.
  void CollectGarbage();
  // Calls `use` while no thread can delete these files. A caller that makes is_in_use true within
  // `use` keeps them afterwards. Throws kNotFound (file_not_found). `use` must not call the store.
  void Use(const std::vector<std::string>& ids, const std::function<void()>& use);
  // Opens a file; its bytes stay readable after a deletion. Throws as Local, and kIo.
  struct Opened {
    StoredFile file;
    UniqueFd fd;
  };
  Opened Open(const std::string& id);

  // Space of the files' disk; nullopt if unknown. Does not wait for the disk.
  std::optional<std::filesystem::space_info> DiskSpace() const;

  // Runs a task on a thread that may wait for the disk. False if the store is stopping or the queue
  // is full.
  bool Post(std::function<void()> task) { return threads_.TryPost(0, std::move(task)); }
  // Finishes running tasks and drops queued ones.
  void Stop() { threads_.Stop(); }

 private:
  int64_t Now() const;

  void Publish(TemporaryFile temporary, StoredFile& file);
  void RemoveUnlisted(const std::string& id, const Error& why);
  void MakeRoom(int64_t extra);
  void DeleteRow(const std::string& id);

  // REQUIRES for the next eleven: mutex_ held.
  std::optional<StoredFile> FindLocked(const std::string& id);
  StoredFile Require(const std::string& id);
  void Insert(const StoredFile& file);
  std::error_code Remove(const std::string& id);
  void FinishRemoval(const std::string& id);
  bool ForgetRow(const std::string& id);
  void RemoveExpired();
  void RemoveRow(const std::string& id);
  void ListFile(const StoredFile& file);
  void Recover();
  void SetAside(const std::string& name);
  class Hold;
  std::unique_ptr<Hold> HoldFiles();
  bool MayBeInWork(const std::string& name) const;

  std::filesystem::path TombstoneOf(const std::string& id) const;

  const Options options_;
  const std::shared_ptr<BlobStore> blobs_;  // never null
  const std::filesystem::path dir_;
  BlobCache cache_;           // of a remote store
  std::mutex collect_mutex_;  // held while garbage is collected; taken before mutex_
  std::mutex mutex_;          // guards the next five
  Database database_;
  BlobGarbage garbage_;
  bool is_held_ = false;              // by a transaction
  int64_t next_expiry_ = 0;           // no file expires earlier
  std::set<std::string> tombstones_;  // deleted files with a row that the database could not remove
                                      // yet
  RequestPool threads_;
};

// A transaction on the files.
class FileStore::Hold {
 public:
  explicit Hold(FileStore& store) : store_(store), transaction_(store.database_, "files") {
    store_.is_held_ = true;
  }
  ~Hold() { store_.is_held_ = false; }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  void Commit() { transaction_.Commit(); }

 private:
  FileStore& store_;
  Transaction transaction_;
};

}  // namespace tandem::server
