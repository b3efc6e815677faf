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

#include "server/database/database.h"
#include "server/files/temporary_file.h"
#include "server/http/request_pool.h"

namespace tandem::server {

// An uploaded file, as the world sees it.
struct StoredFile {
  std::string id;  // "file-" and 24 hexadecimal digits
  int64_t bytes = 0;
  int64_t created_at = 0;  // seconds since 1970
  std::string filename;    // the client's word for it; never a path of ours
  std::string purpose;
  std::optional<int64_t> expires_at;
};

// What an upload says about its file.
struct NewFile {
  std::string filename;
  std::string purpose;
  std::optional<int64_t> expires_after_s;
  std::string id = {};  // of NewId, and of no other file; empty: the store chooses
};

struct FileFilter {
  std::optional<std::string> purpose;
  size_t limit = 10000;
  bool oldest_first = false;
  std::string after;  // id of the last file of the page before; empty: the first page
};

struct FilePage {
  std::vector<StoredFile> files;
  bool has_more = false;
};

// The path component that a client's name for its file ends with, without control characters and
// cut to 255 bytes of UTF-8; nullopt where nothing is left, or "." or "..".
std::optional<std::string> SafeFileName(std::string_view name);

// The uploaded files: their bytes in DATA_DIR/files, named by our ids, and a table of them in
// DATA_DIR/tandem.db. Any thread. Locks are taken in the order files, jobs.
//
// Add() syncs the bytes before the table lists the file. Delete() renames the bytes to
// `ID.deleted`, which decides the deletion, and needs no room on the disk; the row follows. The
// constructor finishes the deletions and removes the unfinished uploads (`ID.part`) of a killed
// server. It moves files that the table does not list to files/unknown/ and never deletes them:
// the database may be new or restored from a backup.
class FileStore {
 public:
  struct Options {
    std::filesystem::path data_dir;  // which exists, and is locked (JobStore)
    int64_t max_file_bytes = int64_t{512} << 20;
    std::function<int64_t()> now = {};  // seconds since 1970; empty: the system's clock
    // Whether a job still needs the file; called with the store's lock held. Empty: none does.
    std::function<bool(const std::string& id)> is_in_use = {};
  };
  explicit FileStore(Options options);
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  int64_t max_file_bytes() const { return options_.max_file_bytes; }

  static std::string NewId();
  // Where an upload goes first. Throws kIo, and kUnavailable (insufficient_storage).
  TemporaryFile BeginFile();
  // On disk, and in the table, when it returns. Throws as BeginFile.
  StoredFile Add(TemporaryFile file, const NewFile& about);

  std::optional<StoredFile> Find(const std::string& id);
  // An unknown `after` is behind everything.
  FilePage List(const FileFilter& filter);
  // Works on a full disk. Throws kNotFound (file_not_found), kAlreadyExists (in_use), and kIo when
  // the directory refuses the rename.
  void Delete(const std::string& id);
  // Where the bytes of a file are.
  std::filesystem::path PathOf(const std::string& id) const { return dir_ / id; }
  // Calls `use` while nobody can delete these files: who makes them needed by then (is_in_use) has
  // them until it ends. Throws kNotFound (file_not_found). `use` may not call the store.
  void Use(const std::vector<std::string>& ids, const std::function<void()>& use);
  // Its bytes, which stay readable when it is deleted. Throws kNotFound.
  struct Opened {
    StoredFile file;
    UniqueFd fd;
  };
  Opened Open(const std::string& id);

  // Of the disk that the files are on; nullopt where it does not say. Does not wait for it.
  std::optional<std::filesystem::space_info> DiskSpace() const;

  // Runs a task on a thread that may wait for the disk; false when the store is stopping.
  bool Post(std::function<void()> task) { return threads_.TryPost(std::move(task)); }
  // Tasks in hand are finished, what waits is dropped.
  void Stop() { threads_.Stop(); }

 private:
  int64_t Now() const;

  // REQUIRES: mutex_ held, for these.
  std::optional<StoredFile> FindLocked(const std::string& id);
  StoredFile Require(const std::string& id);
  void Insert(const StoredFile& file);
  std::error_code Remove(const std::string& id);
  void FinishRemoval(const std::string& id);
  bool ForgetRow(const std::string& id);
  void RemoveExpired();
  void Recover();
  void SetAside(const std::string& name);

  std::filesystem::path TombstoneOf(const std::string& id) const;

  const Options options_;
  const std::filesystem::path dir_;
  std::mutex mutex_;  // guards the next three
  Database database_;
  int64_t next_expiry_ = 0;           // no file expires before
  std::set<std::string> tombstones_;  // deleted files whose rows the database could not remove yet
  RequestPool threads_;
};

}  // namespace tandem::server
