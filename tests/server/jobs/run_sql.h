#pragma once

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <filesystem>

namespace tandem::server {

// Changes a database as no store would: damages it, or makes it refuse statements.
inline void RunSql(const std::filesystem::path& path, const char* sql) {
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &handle), SQLITE_OK);
  sqlite3_busy_timeout(handle, 5000);
  EXPECT_EQ(sqlite3_exec(handle, sql, nullptr, nullptr, nullptr), SQLITE_OK)
      << sqlite3_errmsg(handle);
  sqlite3_close(handle);
}

}  // namespace tandem::server
