#include "server/database/database.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "tests/server/database/database_cases.h"

namespace tandem::server {
namespace {

using DatabaseTest = DatabaseCase;
INSTANTIATE_TEST_SUITE_P(Dialects, DatabaseTest, testing::Values("sqlite", "postgres"),
                         [](const auto& about) { return std::string(about.param); });

int64_t Count(Database& database, const std::string& table) {
  Query query = database.Prepare("SELECT count(*) FROM " + table);
  return query.Next() ? query.Int() : -1;
}

void AddAlias(Database& database, const std::string& name, const std::string& target) {
  Query query = database.Prepare(
      "INSERT INTO aliases (name, target) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET "
      "target = excluded.target");
  query.Bind(std::string_view(name)).Bind(std::string_view(target));
  query.Next();
}

TEST_P(DatabaseTest, KeepsValuesOfEveryType) {
  Database database(source_);
  Query insert = database.Prepare(
      "INSERT INTO jobs (id, type, status, created_at, started_at, progress, request, "
      "cancel_requested, restarts, events_offset, error_message) VALUES "
      "(?,?,?,?,?,?,?,?,?,?,?)");
  const std::string text = "it's \"quoted\", ünïcode, ?1 and $1\nnew line";
  insert.Bind(std::string_view("job-1")).Bind(std::string_view("train"));
  insert.Bind(std::string_view("")).Bind(INT64_MIN).Bind(std::optional<int64_t>());
  insert.Bind(0.1).Bind(std::string_view(text)).Bind(INT64_MAX).Bind(int64_t{0}).Bind(int64_t{-1});
  insert.Bind(std::optional<std::string_view>());
  insert.Next();

  Query query = database.Prepare(
      "SELECT status, created_at, started_at, progress, request, cancel_requested, error_message "
      "FROM jobs WHERE (?1 IS NULL OR id = ?1) AND (?2 IS NULL OR started_at = ?2)");
  query.Bind(std::string_view("job-1")).Bind(std::optional<int64_t>());

  ASSERT_TRUE(query.Next());
  EXPECT_EQ(query.Text(), "");
  EXPECT_EQ(query.Int(), INT64_MIN);
  EXPECT_EQ(query.IntOrNull(), std::nullopt);
  EXPECT_EQ(query.Real(), 0.1);
  EXPECT_EQ(query.Text(), text);
  EXPECT_EQ(query.Int(), INT64_MAX);
  EXPECT_EQ(query.TextOrNull(), std::nullopt);
  EXPECT_FALSE(query.Next());
}

TEST_P(DatabaseTest, CountsChangedRows) {
  Database database(source_);
  AddAlias(database, "a", "x");
  AddAlias(database, "b", "x");

  Query update = database.Prepare("UPDATE aliases SET target = ? WHERE target = ?");
  update.Bind(std::string_view("y")).Bind(std::string_view("x"));
  update.Next();
  EXPECT_EQ(database.changes(), 2);

  Query(database.Prepare("DELETE FROM aliases WHERE name = 'absent'")).Next();
  EXPECT_EQ(database.changes(), 0);
}

TEST_P(DatabaseTest, TransactionWithoutCommitLeavesNothing) {
  Database database(source_);
  {
    Transaction transaction(database, "aliases");
    AddAlias(database, "a", "x");
  }
  EXPECT_EQ(Count(database, "aliases"), 0);
  {
    Transaction transaction(database, "aliases");
    AddAlias(database, "a", "x");
    transaction.Commit();
  }
  EXPECT_EQ(Count(database, "aliases"), 1);
}

TEST_P(DatabaseTest, FailedStatementFailsItsTransactionOnly) {
  Database database(source_);
  {
    Transaction transaction(database, "aliases");
    AddAlias(database, "a", "x");
    const auto error = ErrorOf([&] {
      Query(database.Prepare("INSERT INTO aliases (name, target) VALUES ('a', 'y')")).Next();
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kIo);
  }
  AddAlias(database, "b", "x");
  EXPECT_EQ(Count(database, "aliases"), 1);
}

TEST_P(DatabaseTest, TransactionsOfOneSubjectDoNotInterleave) {
  {
    Database database(source_);
    AddAlias(database, "n", "0");
  }
  constexpr int kThreads = 4;
  constexpr int kRounds = 10;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      Database database(source_);
      for (int round = 0; round < kRounds; ++round) {
        Transaction transaction(database, "aliases");
        Query query = database.Prepare("SELECT target FROM aliases WHERE name = 'n'");
        query.Next();
        AddAlias(database, "n", std::to_string(std::stoi(query.Text()) + 1));
        transaction.Commit();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  Database database(source_);
  Query query = database.Prepare("SELECT target FROM aliases WHERE name = 'n'");
  query.Next();
  EXPECT_EQ(query.Text(), std::to_string(kThreads * kRounds));
}

TEST_P(DatabaseTest, ChangesOfAnotherConnectionCount) {
  Database database(source_);
  const int64_t before = database.ChangeCount("aliases");

  Database other(source_);
  AddAlias(other, "a", "x");

  EXPECT_NE(database.ChangeCount("aliases"), before);
}

TEST_P(DatabaseTest, OpensTogetherOnAnEmptyDatabase) {
  constexpr int kThreads = 4;
  std::atomic<int> n_open = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      Database database(source_);
      if (Count(database, "jobs") == 0) ++n_open;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_open, kThreads);
}

TEST_P(DatabaseTest, RefusesTablesOfANewerProgram) {
  { Database database(source_); }
  static constexpr const char* kFirst[] = {"CREATE TABLE x (y INTEGER) STRICT;"};
  const auto error = ErrorOf([&] {
    Database(source_, Schema{"server", ServerSchema().application_id, kFirst});
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(std::string(error->what()).find("newer program"), std::string::npos);
}

// Ends the connections of others for which the condition holds. Waits until there was one, and
// until they have ended.
void TerminateOthers(Database& database, const std::string& condition) {
  const std::string others =
      " FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND " + condition;
  const auto count = [&](const std::string& what) {
    Query query = database.Prepare("SELECT count(" + what + ")" + others);
    return query.Next() ? query.Int() : 0;
  };
  while (count("pg_terminate_backend(pid)") == 0) {
  }
  while (count("*") > 0) {
  }
}

constexpr const char* kWaitsForALock = "wait_event_type = 'Lock'";
constexpr const char* kAddedAnAlias = "query LIKE 'INSERT INTO aliases%'";

class PostgresFaults : public DatabaseCase {};
INSTANTIATE_TEST_SUITE_P(Dialects, PostgresFaults, testing::Values("postgres"),
                         [](const auto& about) { return std::string(about.param); });

TEST_P(PostgresFaults, ATransactionThatCannotBeginLeavesTheConnectionUsable) {
  Database holder(source_);
  Database waiting(source_);
  Database administrator(source_);
  Transaction held(holder, "aliases");
  std::thread terminator([&] { TerminateOthers(administrator, kWaitsForALock); });
  const auto error = ErrorOf([&] { Transaction(waiting, "aliases"); });
  terminator.join();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->reason(), "database_unavailable");
  held.Commit();

  Transaction next(waiting, "aliases");
  AddAlias(waiting, "a", "x");
  next.Commit();
  EXPECT_EQ(Count(administrator, "aliases"), 1);
}

TEST_P(PostgresFaults, AnIdleConnectionThatEndedIsReplaced) {
  Database database(source_);
  AddAlias(database, "a", "x");
  Database administrator(source_);
  TerminateOthers(administrator, kAddedAnAlias);

  AddAlias(database, "b", "x");
  EXPECT_EQ(Count(database, "aliases"), 2);
}

TEST_P(PostgresFaults, ALossWithinATransactionUndoesIt) {
  Database database(source_);
  Database administrator(source_);
  {
    Transaction transaction(database, "aliases");
    AddAlias(database, "a", "x");
    TerminateOthers(administrator, kAddedAnAlias);
    const auto error = ErrorOf([&] {
      AddAlias(database, "b", "x");
      transaction.Commit();
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), "database_unavailable");
  }
  EXPECT_EQ(Count(database, "aliases"), 0);
  AddAlias(database, "c", "x");
  EXPECT_EQ(Count(database, "aliases"), 1);
}

TEST(DatabaseUrl, RefusesPasswordsAndOtherDatabases) {
  for (const char* url : {"postgres://me:secret@host/db", "mysql://host/db", "host=x password=y",
                          "postgres://host/db?password=secret", "postgres://[host/db"}) {
    const auto error = ErrorOf([&] { CheckDatabaseUrl(url); });
    ASSERT_TRUE(error) << url;
    EXPECT_EQ(std::string(error->what()).find("secret"), std::string::npos);
  }
  CheckDatabaseUrl("postgres://me@host:5432/db?sslmode=verify-full");
}

TEST(PostgresOutage, FailsWithinSecondsAndSaysWhy) {
  DatabaseSource source;
  source.url = "postgres://nobody@127.0.0.1:1/none";
  const auto begin = std::chrono::steady_clock::now();
  const auto error = ErrorOf([&] { Database database(source); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kUnavailable);
  EXPECT_EQ(error->reason(), "database_unavailable");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace tandem::server
