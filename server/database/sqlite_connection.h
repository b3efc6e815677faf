#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "server/database/database_connection.h"
#include "server/database/schema.h"

struct sqlite3;
struct sqlite3_stmt;

namespace tandem::server {

// A connection to a SQLite file.
class SqliteConnection : public DatabaseConnection {
 public:
  // As Database.
  SqliteConnection(std::filesystem::path file, const Schema& schema);
  ~SqliteConnection() override;
  SqliteConnection(const SqliteConnection&) = delete;
  SqliteConnection& operator=(const SqliteConnection&) = delete;

  std::unique_ptr<Rows> Execute(const std::string& sql,
                                std::span<const BoundValue> values) override;
  int64_t changes() const override;
  void Begin(std::string_view subject) override;
  void Commit() override;
  void Rollback() noexcept override;
  int64_t ChangeCount(std::string_view table) override;

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
  void Run(const std::string& sql);
  int64_t Number(const std::string& sql);

  const std::filesystem::path path_;
  const Schema schema_;
  std::unique_ptr<sqlite3, Closer> handle_;
  std::map<std::string, std::unique_ptr<sqlite3_stmt, Closer>> statements_;  // destroyed before
                                                                             // handle_
};

}  // namespace tandem::server
