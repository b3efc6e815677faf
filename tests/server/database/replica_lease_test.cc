#include "server/database/replica_lease.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <thread>

#include "server/database/change_feed.h"
#include "tests/server/database/database_cases.h"

namespace tandem::server {
namespace {

class ReplicaLeaseTest : public DatabaseCase {
 protected:
  // The lease ends that long from now.
  static void SetLease(Database& database, const std::string& replica, int64_t ms) {
    Query query = database.Prepare(
        "INSERT INTO leases (name, owner, epoch, expires_at) VALUES ('replica/' || ?1, ?1, 1, "
        "{now_ms} + ?2) ON CONFLICT (name) DO UPDATE SET expires_at = excluded.expires_at");
    query.Bind(std::string_view(replica)).Bind(ms);
    query.Next();
  }
  static void AddWorkOf(Database& database, const std::string& replica) {
    Query insert = database.Prepare(
        "INSERT INTO batches (id, is_finished, record, replica) VALUES (?1, 0, '{}', ?1)");
    insert.Bind(std::string_view(replica));
    insert.Next();
  }
  // The replicas with work that count as gone.
  static std::set<std::string> Gone(Database& database) {
    Query query = database.Prepare(std::string("SELECT id FROM batches WHERE ") + kReplicaIsGone);
    std::set<std::string> gone;
    while (query.Next()) gone.insert(query.Text());
    return gone;
  }
  // Milliseconds that the lease still has; nullopt: there is none.
  static std::optional<int64_t> Left(Database& database, const std::string& replica) {
    Query query =
        database.Prepare("SELECT expires_at - {now_ms} FROM leases WHERE name = 'replica/' || ?");
    query.Bind(std::string_view(replica));
    return query.Next() ? std::optional(query.Int()) : std::nullopt;
  }

  using Names = std::set<std::string>;
};

INSTANTIATE_TEST_SUITE_P(Dialects, ReplicaLeaseTest, testing::Values("sqlite", "postgres"),
                         [](const auto& about) { return std::string(about.param); });

TEST_P(ReplicaLeaseTest, AReplicaIsGoneWhenItsLeaseHasExpired) {
  Database database(source_);
  SetLease(database, "here", 60'000);
  SetLease(database, "gone", -1000);
  for (const char* replica : {"here", "gone", "unknown"}) AddWorkOf(database, replica);

  EXPECT_EQ(Gone(database), (Names{"gone", "unknown"}));
}

// While the database was away, nobody could prolong a lease.
TEST_P(ReplicaLeaseTest, NobodyIsGoneRightAfterAGap) {
  Database database(source_);
  for (const char* replica : {"a", "b", "c"}) {
    AddWorkOf(database, replica);
    SetLease(database, replica, -1000);
  }
  SetLease(database, "c", 4000);  // prolonged six seconds ago, just before the gap
  EXPECT_EQ(Gone(database), Names{});

  RenewReplicaLease(database, "b");

  EXPECT_EQ(Gone(database), Names{});
  EXPECT_GT(Left(database, "a"), 5000);
  EXPECT_GT(Left(database, "b"), 5000);
  EXPECT_LE(Left(database, "c"), 4000);
}

TEST_P(ReplicaLeaseTest, AReplicaThatStaysAwayIsGoneAPeriodLater) {
  Database database(source_);
  AddWorkOf(database, "a");
  SetLease(database, "a", -1);
  RenewReplicaLease(database, "b");  // after a gap
  ASSERT_EQ(Gone(database), Names{});
  SetLease(database, "a", -1);  // its period is over

  RenewReplicaLease(database, "b");

  EXPECT_EQ(Gone(database), Names{"a"});
}

TEST_P(ReplicaLeaseTest, TheLeaseIsKeptFromTheConstructionOnAndGivenUpAtTheEnd) {
  Database database(source_);
  AddWorkOf(database, "a");
  const auto lives_on = [&] {
    SetLease(database, "a", -1000);
    // Spins until the lease is prolonged; only the test's timeout limits it.
    while (Left(database, "a") <= 0) std::this_thread::yield();
  };
  {
    ReplicaLease lease(source_, "a");
    lives_on();
  }
  EXPECT_EQ(Left(database, "a"), std::nullopt);
  EXPECT_EQ(Gone(database), Names{"a"});
  if (!source_.is_shared()) return;  // the feed needs PostgreSQL

  ChangeFeed feed(source_, "a", [](const std::string&) {});
  lives_on();  // a server may load models for minutes before Start()
  feed.Stop();
  EXPECT_EQ(Left(database, "a"), std::nullopt);
}

}  // namespace
}  // namespace tandem::server
