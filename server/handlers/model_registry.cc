#include "server/handlers/model_registry.h"

#include <algorithm>
#include <set>

namespace tandem::server {

void ModelRegistry::Add(std::shared_ptr<const ServedModel> model,
                        const std::vector<std::string>& aliases) {
  std::vector<Entry> fresh = {{model->id, model}};
  for (const std::string& alias : aliases) {
    if (alias != model->id) fresh.push_back({alias, model});
  }
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : fresh) {
    for (const Entry& present : entries_) {
      if (present.name == entry.name) {
        throw Error(ErrorCode::kAlreadyExists,
                    "a model named '" + entry.name + "' is served already");
      }
    }
  }
  entries_.insert(entries_.end(), fresh.begin(), fresh.end());
}

void ModelRegistry::Publish(std::shared_ptr<const ServedModel> model,
                            const std::vector<std::string>& aliases) {
  std::vector<Entry> replaced;  // declared first: engines end outside the lock
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entry->model->id == model->id) {
      replaced.push_back(std::move(*entry));
      entry = entries_.erase(entry);
    } else {
      ++entry;
    }
  }
  entries_.push_back({model->id, model});
  for (const std::string& alias : aliases) {
    const bool is_taken = std::any_of(entries_.begin(), entries_.end(),
                                      [&](const Entry& entry) { return entry.name == alias; });
    if (!is_taken) entries_.push_back({alias, model});
  }
}

bool ModelRegistry::Contains(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const Entry& entry) { return entry.name == name; });
}

std::shared_ptr<const ServedModel> ModelRegistry::Find(
    const std::optional<std::string>& name) const {
  const std::lock_guard lock(mutex_);
  if (entries_.empty()) {
    throw Error(ErrorCode::kUnavailable, "no model is loaded yet").WithReason("model_loading");
  }
  if (!name) {
    std::set<const ServedModel*> distinct;
    for (const Entry& entry : entries_) distinct.insert(entry.model.get());
    if (distinct.size() == 1) return entries_.front().model;
    throw Error(ErrorCode::kInvalidArgument, "model is required: several models are served")
        .WithParam("model")
        .WithReason("missing_required_parameter");
  }
  for (const Entry& entry : entries_) {
    if (entry.name == *name) return entry.model;
  }
  if (any_model_name_) return entries_.front().model;

  std::string served;
  for (size_t i = 0; i < std::min<size_t>(8, entries_.size()); ++i) {
    if (i > 0) served += ", ";
    served += entries_[i].name;
  }
  throw Error(ErrorCode::kNotFound,
              "model '" + name->substr(0, 120) + "' is not served here; served are: " + served)
      .WithParam("model")
      .WithReason("model_not_found");
}

std::vector<ModelRegistry::Entry> ModelRegistry::List() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

bool ModelRegistry::empty() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty();
}

void ModelRegistry::Clear() {
  std::vector<Entry> dropped;  // engines end outside the lock
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(entries_);
  }
}

}  // namespace tandem::server
