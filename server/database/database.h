#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace tandem::server {

// One run of a prepared statement; resets the statement on destruction. Must not outlive its
// Database.
class Query {
 public:
  Query(sqlite3* handle, sqlite3_stmt* statement, const std::filesystem::path& path)
      : handle_(handle), statement_(statement), path_(path) {}
  ~Query();
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  // Binds the next parameter, in the order of the question marks. Texts must outlive the query.
  Query& Bind(int64_t value);
  Query& Bind(double value);
  Query& Bind(std::string_view text);
  Query& BindNull();
  template <class T>
  Query& Bind(const std::optional<T>& value) {
    return value ? Bind(*value) : BindNull();
  }

  // Returns false if there are no more rows.
  bool Next();

  // Read the columns from left to right.
  int64_t Int();
  double Real();
  std::string Text();
  std::optional<int64_t> IntOrNull();
  std::optional<std::string> TextOrNull();

 private:
  Query& Checked(int rc);
  bool SkipNull();

  sqlite3* handle_;
  sqlite3_stmt* statement_;
  const std::filesystem::path& path_;
  int bound_ = 0;
  int column_ = 0;
};

// The tables of one kind of file.
struct Schema {
  int application_id = 0;  // in the file's header; other files are refused
  // Step i updates a file from version i to version i + 1. Released steps must not change.
  std::span<const char* const> steps;
};
// DATA_DIR/tandem.db: jobs, uploaded files, aliases.
const Schema& ServerSchema();

// One connection to a database: DATA_DIR/tandem.db with the tables of several rooms, or the file of
// API keys. A process may have several connections; each is used by one thread at a time. The lock
// of the data directory (JobStore) decides which process may open tandem.db. Several processes may
// open other files.
//
// Every method throws kIo for a disk error, kUnavailable (insufficient_storage) for a full disk,
// and kDataLoss for a corrupt file.
class Database {
 public:
  // Creates a missing file and updates its tables. Restricts the file, its -wal and its -shm to
  // mode 0600. Throws kFailedPrecondition if a newer program wrote the file, and kDataLoss if it is
  // corrupt or not ours. A refused file keeps its contents.
  explicit Database(std::filesystem::path file, const Schema& schema = ServerSchema());
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Prepares each distinct text once and caches it.
  Query Prepare(const std::string& sql);
  void Run(const std::string& sql);
  // Rows changed by the last INSERT, UPDATE or DELETE.
  int64_t changes() const;

 private:
  struct Closer {
    void operator()(sqlite3* handle) const;
    void operator()(sqlite3_stmt* statement) const;
  };

  void CreateForOwner() const;
  void Open();
  void Configure();
  void Check();
  void BringUpToDate();
  int64_t Number(const std::string& sql);

  const std::filesystem::path path_;
  const Schema schema_;
  std::unique_ptr<sqlite3, Closer> handle_;
  std::map<std::string, std::unique_ptr<sqlite3_stmt, Closer>> statements_;  // destroyed before
                                                                             // handle_
};

}  // namespace tandem::server
