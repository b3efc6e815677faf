#include "server/handlers/model_registry.h"

#include <algorithm>
#include <set>

#include "engine/base/thread_name.h"

namespace tandem::server {

ModelRegistry::ModelRegistry(bool any_model_name)
    : any_model_name_(any_model_name), thread_([this] { EndRetired(); }) {}

ModelRegistry::~ModelRegistry() {
  Clear();
  {
    const std::lock_guard lock(leases_->mutex);
    stopping_ = true;
  }
  leases_->released.notify_all();
  thread_.join();
}

// Points to the model without owning it: the registry does, for as long as there is a lease.
std::shared_ptr<const ServedModel> ModelRegistry::Lease(
    const std::shared_ptr<const ServedModel>& model) const {
  {
    const std::lock_guard lock(leases_->mutex);
    ++leases_->count[model.get()];
  }
  return {model.get(), [leases = leases_](const ServedModel* leased) {
            bool is_last = false;
            {
              const std::lock_guard lock(leases->mutex);
              const auto found = leases->count.find(leased);
              is_last = --found->second == 0;
              if (is_last) leases->count.erase(found);
            }
            if (is_last) leases->released.notify_all();
          }};
}

void ModelRegistry::Retire(std::shared_ptr<const ServedModel> model,
                           std::function<void()> on_gone) {
  {
    const std::lock_guard lock(leases_->mutex);
    retired_.push_back({std::move(model), std::move(on_gone)});
  }
  leases_->released.notify_all();
}

void ModelRegistry::EndRetired() {
  NameThisThread("tandem-models");
  std::unique_lock lock(leases_->mutex);
  for (;;) {
    const auto idle = std::find_if(retired_.begin(), retired_.end(), [&](const Retired& retired) {
      return !leases_->count.contains(retired.model.get());
    });
    if (idle == retired_.end()) {
      if (stopping_) return;
      leases_->released.wait(lock);
      continue;
    }
    Retired gone = std::move(*idle);
    retired_.erase(idle);
    lock.unlock();
    gone.model.reset();  // ends the engine, frees the weights
    if (gone.on_gone) gone.on_gone();
    gone.on_gone = nullptr;
    lock.lock();
  }
}

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

void ModelRegistry::Publish(const std::shared_ptr<const ServedModel>& model,
                            const std::vector<std::string>& aliases) {
  std::shared_ptr<const ServedModel> replaced;
  {
    const std::lock_guard lock(mutex_);
    replaced = Erase(model->id);
    entries_.push_back({model->id, model});
    for (const std::string& alias : aliases) {
      const bool is_taken = std::any_of(entries_.begin(), entries_.end(),
                                        [&](const Entry& entry) { return entry.name == alias; });
      if (!is_taken) entries_.push_back({alias, model});
    }
  }
  if (replaced) Retire(std::move(replaced), nullptr);
}

// REQUIRES: mutex_ held. The model with that id loses all of its names.
std::shared_ptr<const ServedModel> ModelRegistry::Erase(const std::string& id) {
  std::shared_ptr<const ServedModel> erased;
  std::erase_if(entries_, [&](const Entry& entry) {
    if (entry.model->id != id) return false;
    erased = entry.model;
    return true;
  });
  return erased;
}

bool ModelRegistry::Remove(const std::string& name, std::function<void()> on_gone) {
  std::shared_ptr<const ServedModel> removed;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return entry.name == name; });
    if (found == entries_.end()) return false;
    const std::string id = found->model->id;
    removed = Erase(id);
  }
  Retire(std::move(removed), std::move(on_gone));
  return true;
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
    // Adapters have to be asked for: who names nothing means the model itself.
    for (const Entry& entry : entries_) {
      if (!entry.model->adapter) distinct.insert(entry.model.get());
    }
    for (const Entry& entry : entries_) {
      if (distinct.size() == 1 && distinct.contains(entry.model.get())) return Lease(entry.model);
    }
    throw Error(ErrorCode::kInvalidArgument, "model is required: several models are served")
        .WithParam("model")
        .WithReason("missing_required_parameter");
  }
  for (const Entry& entry : entries_) {
    if (entry.name == *name) return Lease(entry.model);
  }
  if (any_model_name_) return Lease(entries_.front().model);

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
  std::vector<Entry> out;
  out.reserve(entries_.size());
  for (const Entry& entry : entries_) out.push_back({entry.name, Lease(entry.model)});
  return out;
}

bool ModelRegistry::empty() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty();
}

void ModelRegistry::Clear() {
  std::vector<Entry> dropped;  // engines end outside the locks
  std::vector<Retired> retired;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(entries_);
  }
  {
    const std::lock_guard lock(leases_->mutex);
    retired.swap(retired_);
  }
}

}  // namespace tandem::server
