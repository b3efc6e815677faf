#include "server/handlers/alias_book.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/io/atomic_write.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxFileBytes = 16 << 20;

}  // namespace

AliasBook::AliasBook(ModelRegistry& registry, std::filesystem::path file)
    : registry_(registry), file_(std::move(file)) {
  if (file_.empty() || !std::filesystem::exists(file_)) return;
  const Json aliases = Json::parse(engine::ReadWholeFile(file_, kMaxFileBytes), nullptr, false);
  const auto is_text = [](const Json& target) { return target.is_string(); };
  if (!aliases.is_object() || !std::all_of(aliases.begin(), aliases.end(), is_text)) {
    throw Error(ErrorCode::kDataLoss,
                file_.string() + ": not an object of names and targets; repair or remove it");
  }
  for (const auto& [name, target] : aliases.items()) {
    try {
      registry_.SetAlias(name, target.get<std::string>(), true);
    } catch (const Error& error) {
      spdlog::warn("alias_left_out alias={} reason=\"{}\"", name, error.what());
    }
  }
}

void AliasBook::Write() const {
  if (file_.empty()) return;
  Json aliases = Json::object();
  for (const ModelRegistry::Alias& alias : registry_.Aliases()) aliases[alias.name] = alias.target;
  engine::WriteFileAtomically(file_, aliases.dump(2) + "\n");
}

std::optional<std::string> AliasBook::Set(const std::string& name, const std::string& target) {
  const std::lock_guard lock(mutex_);
  std::optional<std::string> previous = registry_.SetAlias(name, target);
  try {
    Write();
  } catch (...) {
    if (previous) {
      registry_.SetAlias(name, *previous, true);
    } else {
      registry_.RemoveAlias(name);
    }
    throw;
  }
  return previous;
}

std::optional<std::string> AliasBook::Remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::optional<std::string> previous = registry_.RemoveAlias(name);
  if (!previous) return previous;
  try {
    Write();
  } catch (...) {
    registry_.SetAlias(name, *previous, true);
    throw;
  }
  return previous;
}

}  // namespace tandem::server
