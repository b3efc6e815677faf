#include "server/models/alias_book.h"

#include <map>
#include <string_view>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "server/database/database.h"

namespace tandem::server {

AliasBook::AliasBook(ModelRegistry& registry, const std::filesystem::path& database)
    : registry_(registry) {
  if (database.empty()) return;
  database_ = std::make_unique<Database>(database);
  RefreshLocked();
}

AliasBook::AliasBook(ModelRegistry& registry, const DatabaseSource& shared)
    : registry_(registry), database_(std::make_unique<Database>(shared)) {
  RefreshLocked();
}

void AliasBook::Refresh() {
  const std::lock_guard lock(mutex_);
  if (database_) RefreshLocked();
}

// An alias that is now another's target must go before that other comes.
void AliasBook::RefreshLocked() {
  std::map<std::string, std::string> stored;
  Query rows = database_->Prepare("SELECT name, target FROM aliases ORDER BY name");
  while (rows.Next()) {
    std::string name = rows.Text();
    stored[std::move(name)] = rows.Text();
  }
  for (const ModelRegistry::Alias& alias : registry_.Aliases()) {
    const auto found = stored.find(alias.name);
    if (found != stored.end() && found->second == alias.target) {
      stored.erase(found);
    } else if (found == stored.end()) {
      registry_.RemoveAlias(alias.name);
    }
  }
  for (const auto& [name, target] : stored) {
    if (const auto error = ErrorOf([&] { registry_.SetAlias(name, target, true); })) {
      spdlog::warn("alias_left_out alias={} reason=\"{}\"", name, error->what());
    }
  }
}

AliasBook::~AliasBook() = default;

std::optional<std::string> AliasBook::Set(const std::string& name, const std::string& target) {
  const std::lock_guard lock(mutex_);
  std::optional<std::string> previous = registry_.SetAlias(name, target);
  if (!database_) return previous;
  UndoOnFailure(
      [&] {
        database_
            ->Prepare(
                "INSERT INTO aliases (name, target) VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET target = excluded.target")
            .Bind(std::string_view(name))
            .Bind(std::string_view(target))
            .Next();
      },
      [&] {
        if (previous) {
          registry_.SetAlias(name, *previous, true);
        } else {
          registry_.RemoveAlias(name);
        }
      });
  return previous;
}

std::optional<std::string> AliasBook::Remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::optional<std::string> previous = registry_.RemoveAlias(name);
  if (!previous || !database_) return previous;
  UndoOnFailure(
      [&] {
        database_->Prepare("DELETE FROM aliases WHERE name = ?")
            .Bind(std::string_view(name))
            .Next();
      },
      [&] { registry_.SetAlias(name, *previous, true); });
  return previous;
}

}  // namespace tandem::server
