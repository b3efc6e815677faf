#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/models/model_registry.h"

namespace tandem::server {

class Database;

// The aliases of a server, as its registry has them, kept in the server's database: what a change
// has answered is there after a crash. Any thread.
class AliasBook {
 public:
  // Takes up what the database holds. A target need not be served yet; a name that a model has by
  // now is left out with a warning. With an empty path aliases last as long as the server. Throws
  // as Database.
  AliasBook(ModelRegistry& registry, const std::filesystem::path& database);
  ~AliasBook();
  AliasBook(const AliasBook&) = delete;
  AliasBook& operator=(const AliasBook&) = delete;

  // As ModelRegistry's, and kIo where it cannot be written down: then nothing has changed.
  std::optional<std::string> Set(const std::string& name, const std::string& target);
  std::optional<std::string> Remove(const std::string& name);

 private:
  ModelRegistry& registry_;
  std::mutex mutex_;                    // one change at a time
  std::unique_ptr<Database> database_;  // guarded by it; null: none
};

}  // namespace tandem::server
