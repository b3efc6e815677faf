#include "server/database/lease.h"

#include <gtest/gtest.h>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "tests/server/database/database_cases.h"

namespace tandem::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{60'000};
constexpr milliseconds kOver{-1000};  // expired at once

using LeaseTest = DatabaseCase;
INSTANTIATE_TEST_SUITE_P(Dialects, LeaseTest, testing::Values("sqlite", "postgres"),
                         [](const auto& about) { return std::string(about.param); });

TEST_P(LeaseTest, OneOwnerAtATime) {
  Database database_a(source_);
  Database database_b(source_);
  Lease a(database_a, "jobs", "a");
  Lease b(database_b, "jobs", "b");

  EXPECT_TRUE(a.TakeOrKeep(kLong));
  EXPECT_FALSE(b.TakeOrKeep(kLong));
  EXPECT_TRUE(a.TakeOrKeep(kLong));
  EXPECT_EQ(a.epoch(), 1);
}

TEST_P(LeaseTest, ReleasedAndExpiredLeasesPassOn) {
  Database database(source_);
  Lease a(database, "jobs", "a");
  Lease b(database, "jobs", "b");
  Lease c(database, "jobs", "c");

  ASSERT_TRUE(a.TakeOrKeep(kLong));
  a.Release();
  EXPECT_TRUE(b.TakeOrKeep(kOver));
  EXPECT_EQ(b.epoch(), 2);
  EXPECT_TRUE(c.TakeOrKeep(kLong));
  EXPECT_EQ(c.epoch(), 3);
}

TEST_P(LeaseTest, OwnerThatSleptBeyondItsExpiryIsFenced) {
  Database database(source_);
  Lease slow(database, "jobs", "slow");
  Lease next(database, "jobs", "next");
  ASSERT_TRUE(slow.TakeOrKeep(kOver));
  ASSERT_TRUE(next.TakeOrKeep(kLong));

  Transaction transaction(database, "jobs");
  const auto error = ErrorOf([&] { slow.Require(); });

  ASSERT_TRUE(error);
  EXPECT_EQ(error->reason(), "lease_lost");
  EXPECT_FALSE(slow.is_held());
  next.Require();
}

}  // namespace
}  // namespace tandem::server
