#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/database/database_connection.h"
#include "server/database/database_source.h"
#include "server/database/schema.h"

namespace tandem::server {

// One run of a statement. Must not outlive its Database.
class Query {
 public:
  Query(DatabaseConnection& connection, std::string sql)
      : connection_(&connection), sql_(std::move(sql)) {}
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  // Binds the next parameter. Texts must outlive the query. A parameter has one type, null or not:
  // PostgreSQL wants to know it.
  Query& Bind(int64_t value);
  Query& Bind(double value);
  Query& Bind(std::string_view text);
  Query& Bind(const std::optional<int64_t>& value);
  Query& Bind(const std::optional<double>& value);
  Query& Bind(const std::optional<std::string_view>& text);

  // The first call executes the statement. Returns false if there are no more rows.
  bool Next();

  // Read the columns from left to right.
  int64_t Int();
  double Real();
  std::string Text();
  std::optional<int64_t> IntOrNull();
  std::optional<std::string> TextOrNull();

 private:
  bool SkipNull();

  DatabaseConnection* connection_;
  const std::string sql_;
  std::vector<BoundValue> values_;
  std::unique_ptr<Rows> rows_;  // null: not executed yet
  int column_ = 0;
};

// One connection to a database with the tables of several rooms: DATA_DIR/tandem.db, the file of
// API keys, or the PostgreSQL database of all replicas. A process may have several connections;
// each is used by one thread at a time. The lock of the data directory (JobStore) decides which
// process may open tandem.db. Several processes may open other files.
//
// Every method throws kIo for a disk error, kUnavailable (insufficient_storage) for a full disk,
// and kDataLoss for a corrupt file; with PostgreSQL also kUnavailable (database_unavailable).
class Database {
 public:
  // Creates a missing file and updates its tables. Restricts the file, its -wal and its -shm to
  // mode 0600. Throws kFailedPrecondition if a newer program wrote the file, and kDataLoss if it is
  // corrupt or not ours. A refused file keeps its contents.
  explicit Database(const std::filesystem::path& file, const Schema& schema = ServerSchema());
  // As above, or as PostgresConnection.
  explicit Database(const DatabaseSource& source, const Schema& schema = ServerSchema());
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  Query Prepare(std::string sql) { return {*connection_, std::move(sql)}; }
  // Rows changed by the last INSERT, UPDATE or DELETE.
  int64_t changes() const { return connection_->changes(); }
  // As DatabaseConnection.
  int64_t ChangeCount(std::string_view table) { return connection_->ChangeCount(table); }

 private:
  friend class Transaction;
  std::unique_ptr<DatabaseConnection> connection_;
};

// Changes that happen together or not at all. Rolls back on destruction without Commit.
class Transaction {
 public:
  // As DatabaseConnection::Begin.
  Transaction(Database& database, std::string_view subject);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  void Commit();

 private:
  DatabaseConnection& connection_;
  bool is_open_ = true;
};

}  // namespace tandem::server
