// The part of ModelRegistry that gives names: claims and aliases.

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "server/models/model_registry.h"

namespace tandem::server {

bool IsModelName(std::string_view name) {
  const bool is_plain = name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
                          return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                                 (c >= 'A' && c <= 'Z') ||
                                 std::string_view("._:/-").find(c) != std::string_view::npos;
                        });
  if (!is_plain) return false;
  // Refuse segments that resolving a URL or file path would remove.
  for (size_t begin = 0;;) {
    const size_t slash = std::min(name.find('/', begin), name.size());
    const std::string_view segment = name.substr(begin, slash - begin);
    if (segment.empty() || segment == "." || segment == "..") return false;
    if (slash == name.size()) return true;
    begin = slash + 1;
  }
}

NameClaim::NameClaim(NameClaim&& other) noexcept
    : registry_(std::exchange(other.registry_, nullptr)),
      name_(std::move(other.name_)),
      replaces_(other.replaces_) {}

NameClaim& NameClaim::operator=(NameClaim&& other) noexcept {
  if (this == &other) return *this;
  Release();
  registry_ = std::exchange(other.registry_, nullptr);
  name_ = std::move(other.name_);
  replaces_ = other.replaces_;
  return *this;
}

void NameClaim::Release() {
  if (registry_ != nullptr) std::exchange(registry_, nullptr)->Unclaim(name_);
}

void ModelRegistry::ThrowIfTaken(const std::string& name) const {
  const auto taken = [&](const std::string& what) {
    return Error(ErrorCode::kAlreadyExists, what + " already").WithReason("already_exists");
  };
  if (FindEntry(name) != nullptr) throw taken("a model named '" + name + "' is served");
  if (claimed_.contains(name)) throw taken("a model named '" + name + "' is being loaded");
  const auto alias = aliases_.find(name);
  if (alias != aliases_.end()) {
    throw taken("'" + name + "' is an alias of '" + alias->second + "'");
  }
}

NameClaim ModelRegistry::Claim(const std::string& name) {
  const std::lock_guard lock(mutex_);
  ThrowIfTaken(name);
  claimed_.insert(name);
  return {this, name, false};
}

std::optional<NameClaim> ModelRegistry::TryClaimTuned(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const Entry* present = FindEntry(id);
  if (present != nullptr && (present->model->id != id || !present->model->is_tuned())) {
    return std::nullopt;
  }
  if (aliases_.contains(id) || !claimed_.insert(id).second) return std::nullopt;
  return NameClaim(this, id, true);
}

NameClaim ModelRegistry::ClaimForAdapter(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const Entry* present = FindEntry(name);
  if (present == nullptr || claimed_.contains(name)) {
    ThrowIfTaken(name);
  } else if (!present->model->base || present->model->id != name) {
    throw Error(
        ErrorCode::kAlreadyExists,
        "'" + name +
            "' is the name of a model, and an adapter cannot replace a model: choose another name")
        .WithReason("already_exists");
  }
  claimed_.insert(name);
  return {this, name, true};
}

void ModelRegistry::Unclaim(const std::string& name) {
  const std::lock_guard lock(mutex_);
  claimed_.erase(name);
}

bool ModelRegistry::IsClaimed(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return claimed_.contains(name);
}

std::optional<std::string> ModelRegistry::SetAlias(const std::string& name,
                                                   const std::string& target, bool may_dangle) {
  if (!may_dangle) LoadIfMissing(target, std::nullopt);
  const std::lock_guard lock(mutex_);
  const auto present = aliases_.find(name);
  if (present == aliases_.end()) ThrowIfTaken(name);
  if (aliases_.contains(target)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "'" + target + "' is itself an alias: name its target, '" + aliases_.at(target) + "'")
        .WithParam("target")
        .WithReason("invalid_value");
  }
  if (!may_dangle && FindEntry(target) == nullptr) {
    throw NotServed(target).WithParam("target");
  }
  if (present == aliases_.end()) {
    aliases_.emplace(name, target);
    return std::nullopt;
  }
  return std::exchange(present->second, target);
}

std::optional<std::string> ModelRegistry::RemoveAlias(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = aliases_.extract(name);
  if (found.empty()) return std::nullopt;
  return found.mapped();
}

std::vector<ModelRegistry::Alias> ModelRegistry::Aliases() const {
  const std::lock_guard lock(mutex_);
  std::vector<Alias> out;
  for (const auto& [name, target] : aliases_) {
    out.push_back({name, target, FindEntry(target) != nullptr});
  }
  return out;
}

std::optional<ModelRegistry::Alias> ModelRegistry::FindAlias(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = aliases_.find(name);
  if (found == aliases_.end()) return std::nullopt;
  return Alias{name, found->second, FindEntry(found->second) != nullptr};
}

}  // namespace tandem::server
