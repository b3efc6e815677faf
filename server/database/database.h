#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace tandem::server {

// One run of a prepared statement; leaves it ready for the next. Must not outlive its Database.
class Query {
 public:
  Query(sqlite3* handle, sqlite3_stmt* statement, const std::filesystem::path& path)
      : handle_(handle), statement_(statement), path_(path) {}
  ~Query();
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  // Parameters in the order of the statement's question marks. Texts must outlive the query.
  Query& Bind(int64_t value);
  Query& Bind(double value);
  Query& Bind(std::string_view text);
  Query& BindNull();
  template <class T>
  Query& Bind(const std::optional<T>& value) {
    return value ? Bind(*value) : BindNull();
  }

  // False when there is no further row.
  bool Next();

  // Columns from left to right.
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

// One connection to the server's database, DATA_DIR/tandem.db, with the tables of every room.
// Several connections of one process may be open at once; whoever owns one uses it from one thread
// at a time. Who may open the file at all is decided by the lock of the data directory (JobStore).
//
// Every method throws kIo when the disk refuses, kUnavailable (insufficient_storage) when it is
// full, and kDataLoss when the file turns out corrupt.
class Database {
 public:
  // Creates the file where missing and brings its tables up to date. Restricts the file, its -wal
  // and its -shm to mode 0600. Throws kFailedPrecondition if a newer program wrote it, and
  // kDataLoss if it is corrupt or another program's. Refusing a file does not change its contents.
  explicit Database(std::filesystem::path file);
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Prepares each distinct text once; a room has a handful of them.
  Query Prepare(const std::string& sql);
  void Run(const std::string& sql);
  // Rows that the last INSERT, UPDATE or DELETE has changed.
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
  std::unique_ptr<sqlite3, Closer> handle_;
  std::map<std::string, std::unique_ptr<sqlite3_stmt, Closer>> statements_;  // freed first
};

}  // namespace tandem::server
