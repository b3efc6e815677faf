#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/models/model_registry.h"

namespace tandem::server {

class Database;
struct DatabaseSource;

// Keeps the registry's aliases in the server's database: a change that has returned survives a
// crash. Thread-safe.
class AliasBook {
 public:
  // Restores the aliases of the database into the registry. A target need not be served yet. An
  // alias whose name is now a model's is skipped with a warning. With an empty path, aliases are
  // not stored. Throws as Database.
  AliasBook(ModelRegistry& registry, const std::filesystem::path& database);
  // The aliases of replicas.
  AliasBook(ModelRegistry& registry, const DatabaseSource& shared);
  ~AliasBook();
  AliasBook(const AliasBook&) = delete;
  AliasBook& operator=(const AliasBook&) = delete;

  // As ModelRegistry::SetAlias and RemoveAlias. Throws as Database if the change cannot be stored;
  // then nothing has changed.
  std::optional<std::string> Set(const std::string& name, const std::string& target);
  std::optional<std::string> Remove(const std::string& name);

  // Takes over changes that another replica has made to the database. Throws as Database.
  void Refresh();

 private:
  void RefreshLocked();

  ModelRegistry& registry_;
  std::mutex mutex_;                    // one change at a time; guards database_
  std::unique_ptr<Database> database_;  // null: aliases are not stored
};

}  // namespace tandem::server
