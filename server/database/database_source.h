#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tandem::server {

// Where the tables are: a SQLite file of this server, or a PostgreSQL database of all replicas.
struct DatabaseSource {
  std::filesystem::path file = {};  // without a URL
  std::string url = {};             // postgres://user@host:port/database; without a password
  std::string password = {};        // empty: PGPASSWORD or ~/.pgpass

  bool is_shared() const { return !url.empty(); }
};

// Throws kInvalidArgument for an unusable URL, and for one that contains a password: the list of
// processes would show it.
void CheckDatabaseUrl(const std::string& url);

// The source itself if it is shared, otherwise the file of that name in the data directory.
DatabaseSource InDataDir(const DatabaseSource& source, const std::filesystem::path& data_dir,
                         std::string_view name = "tandem.db");

}  // namespace tandem::server
