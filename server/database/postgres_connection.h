#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "server/database/database_connection.h"
#include "server/database/database_source.h"
#include "server/database/schema.h"

struct pg_conn;
struct pg_result;

namespace tandem::server {

// A connection to a PostgreSQL database. Replicas share it.
//
// A lost connection is opened again at the next statement: up to `patience` with growing pauses,
// then kUnavailable (database_unavailable), and for the next second at once. A statement that only
// reads is repeated after a loss. A change is not, since it may have been stored: its caller gets
// kUnavailable.
class PostgresConnection : public DatabaseConnection {
 public:
  // Creates the tables, or updates them under a lock that all replicas share. Throws kUnavailable
  // if no database answers, and kFailedPrecondition if a newer program has updated the tables.
  PostgresConnection(const DatabaseSource& source, const Schema& schema);
  ~PostgresConnection() override;
  PostgresConnection(const PostgresConnection&) = delete;
  PostgresConnection& operator=(const PostgresConnection&) = delete;

  std::unique_ptr<Rows> Execute(const std::string& sql,
                                std::span<const BoundValue> values) override;
  int64_t changes() const override { return changes_; }
  void Begin(std::string_view subject) override;
  void Commit() override;
  void Rollback() noexcept override;
  int64_t ChangeCount(std::string_view table) override;

  // Waits for changes of other connections to the followed tables, and returns their names; at most
  // `timeout`, or until `wake_fd` becomes readable.
  std::vector<std::string> WaitForChanges(std::chrono::milliseconds timeout, int wake_fd);

 private:
  struct Closer {
    void operator()(pg_conn* connection) const;
    void operator()(pg_result* result) const;
  };
  using Result = std::unique_ptr<pg_result, Closer>;
  using Clock = std::chrono::steady_clock;

  void Connect(std::chrono::milliseconds patience);
  bool TryConnect();  // false: error_ says why
  void DropIfEnded();
  Result Send(const std::string& sql, std::span<const BoundValue> values);
  void Run(const std::string& sql);
  [[noreturn]] void Throw(pg_result* result);
  void BringUpToDate(const Schema& schema);

  const DatabaseSource source_;
  std::unique_ptr<pg_conn, Closer> connection_;  // null: not connected
  bool is_in_transaction_ = false;
  bool is_listening_ = false;  // LISTEN has run on this connection
  bool is_ending_ = false;     // the database has announced the end of this connection
  int64_t changes_ = 0;
  std::string error_;             // of the last attempt to connect
  Clock::time_point not_before_;  // of the next attempt
};

}  // namespace tandem::server
