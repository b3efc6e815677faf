#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "server/database/database.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {

// Every case runs on SQLite, and on the PostgreSQL of TANDEM_TEST_POSTGRES (a URL) if it is set:
// tests/cluster/with_postgres starts one.
inline const char* TestPostgres() { return std::getenv("TANDEM_TEST_POSTGRES"); }

// A new database for each test.
class DatabaseCase : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "sqlite") {
      source_.file = dir_ / "tandem.db";
      return;
    }
    if (TestPostgres() == nullptr) GTEST_SKIP() << "TANDEM_TEST_POSTGRES is not set";
    source_.url = TestPostgres();
    // A connection without tables of ours empties the database.
    static constexpr Schema kNone{"none", 0, {}};
    Database database(source_, kNone);
    for (const char* sql : {"DROP SCHEMA public CASCADE", "CREATE SCHEMA public"}) {
      Query(database.Prepare(sql)).Next();
    }
  }

  tests::TemporaryDir dir_;
  DatabaseSource source_;
};

}  // namespace tandem::server
