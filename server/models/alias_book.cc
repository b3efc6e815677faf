#include "server/models/alias_book.h"

#include <string_view>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "server/database/database.h"

namespace tandem::server {

AliasBook::AliasBook(ModelRegistry& registry, const std::filesystem::path& database)
    : registry_(registry) {
  if (database.empty()) return;
  database_ = std::make_unique<Database>(database);
  Query rows = database_->Prepare("SELECT name, target FROM aliases ORDER BY name");
  while (rows.Next()) {
    const std::string name = rows.Text();
    const std::string target = rows.Text();
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
        database_->Prepare("INSERT OR REPLACE INTO aliases (name, target) VALUES (?, ?)")
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
