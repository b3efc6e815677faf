#include "server/handlers/model_registry.h"

#include <algorithm>
#include <set>

#include "engine/base/thread_name.h"

namespace tandem::server {
namespace {

// Names of models that have gone and may still be asked for.
constexpr size_t kMaxDeparted = 64;

}  // namespace

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
    const std::shared_ptr<const ServedModel>& model, LeaseFor purpose) const {
  const int64_t n_requests = purpose == LeaseFor::kRequest ? 1 : 0;
  {
    const std::lock_guard lock(leases_->mutex);
    Count& count = leases_->count[model.get()];
    ++count.leases;
    count.requests += n_requests;
  }
  return {model.get(), [leases = leases_, n_requests](const ServedModel* leased) {
            bool is_last = false;
            {
              const std::lock_guard lock(leases->mutex);
              const auto found = leases->count.find(leased);
              found->second.requests -= n_requests;
              if (n_requests > 0) leases->last_request[leased] = std::chrono::steady_clock::now();
              is_last = --found->second.leases == 0;
              if (is_last) leases->count.erase(found);
            }
            if (is_last) leases->released.notify_all();
          }};
}

std::optional<std::chrono::steady_clock::time_point> ModelRegistry::IdleSince(
    const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& present) { return present.model->id == id; });
  if (entry == entries_.end()) return std::nullopt;
  const ServedModel* model = entry->model.get();
  const std::lock_guard lease_lock(leases_->mutex);
  auto since = leases_->last_request.at(model);
  for (const Entry& each : entries_) {
    if (each.model.get() != model && each.model->base.get() != model) continue;
    const auto count = leases_->count.find(each.model.get());
    if (count != leases_->count.end() && count->second.requests > 0) return std::nullopt;
    since = std::max(since, leases_->last_request.at(each.model.get()));
  }
  return since;
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
    leases_->last_request.erase(gone.model.get());
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
  Welcome(model->id, model.get());
}

void ModelRegistry::Publish(const std::shared_ptr<const ServedModel>& model,
                            const std::vector<std::string>& aliases) {
  std::shared_ptr<const ServedModel> replaced;
  {
    const std::lock_guard lock(mutex_);
    replaced = Erase(model->id);
    entries_.push_back({model->id, model});
    Welcome(model->id, model.get());
    for (const std::string& alias : aliases) {
      const bool is_taken = std::any_of(entries_.begin(), entries_.end(),
                                        [&](const Entry& entry) { return entry.name == alias; });
      if (!is_taken) entries_.push_back({alias, model});
    }
  }
  if (replaced) Retire(std::move(replaced), nullptr);
}

// REQUIRES: mutex_ held.
void ModelRegistry::Welcome(const std::string& id, const ServedModel* model) {
  had_any_ = true;
  std::erase_if(departed_, [&](const auto& gone) { return gone.first == id; });
  const std::lock_guard lock(leases_->mutex);
  leases_->last_request[model] = std::chrono::steady_clock::now();
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

bool ModelRegistry::Remove(const std::string& name, std::function<void()> on_gone,
                           const std::string& why) {
  std::shared_ptr<const ServedModel> removed;
  std::vector<std::shared_ptr<const ServedModel>> adapters;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return entry.name == name; });
    if (found == entries_.end()) return false;
    const std::string id = found->model->id;
    removed = Erase(id);
    if (!why.empty()) departed_.emplace_back(id, why);
    std::erase_if(entries_, [&](const Entry& entry) {
      if (entry.model->base != removed) return false;
      adapters.push_back(entry.model);
      if (!why.empty()) departed_.emplace_back(entry.name, why);
      return true;
    });
    while (departed_.size() > kMaxDeparted) departed_.pop_front();
  }
  for (auto& adapter : adapters) Retire(std::move(adapter), nullptr);
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
  if (!name && !entries_.empty()) {
    std::set<const ServedModel*> distinct;
    // Adapters have to be asked for: who names nothing means the model itself.
    for (const Entry& entry : entries_) {
      if (!entry.model->adapter) distinct.insert(entry.model.get());
    }
    for (const Entry& entry : entries_) {
      if (distinct.size() == 1 && distinct.contains(entry.model.get())) {
        return Lease(entry.model, LeaseFor::kRequest);
      }
    }
    throw Error(ErrorCode::kInvalidArgument, "model is required: several models are served")
        .WithParam("model")
        .WithReason("missing_required_parameter");
  }
  for (const Entry& entry : entries_) {
    if (entry.name == name) return Lease(entry.model, LeaseFor::kRequest);
  }
  if (any_model_name_ && !entries_.empty()) {
    return Lease(entries_.front().model, LeaseFor::kRequest);
  }
  ThrowNotServed(name.value_or(""));
}

std::shared_ptr<const ServedModel> ModelRegistry::Look(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.name == name) return Lease(entry.model, LeaseFor::kLooking);
  }
  ThrowNotServed(name);
}

void ModelRegistry::ThrowNotServed(const std::string& name) const {
  if (!had_any_) {
    throw Error(ErrorCode::kUnavailable, "no model is loaded yet").WithReason("model_loading");
  }
  std::string message = name.empty() ? "no model is served"
                                     : "model '" + name.substr(0, 120) + "' is not served here";
  for (const auto& [gone, why] : departed_) {
    if (gone == name) message += ": " + why;
  }
  std::string served;
  for (size_t i = 0; i < std::min<size_t>(8, entries_.size()); ++i) {
    if (i > 0) served += ", ";
    served += entries_[i].name;
  }
  message += served.empty() ? "; no model is loaded" : "; served are: " + served;
  throw Error(ErrorCode::kNotFound, message).WithParam("model").WithReason("model_not_found");
}

std::vector<ModelRegistry::Entry> ModelRegistry::List() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> out;
  out.reserve(entries_.size());
  for (const Entry& entry : entries_)
    out.push_back({entry.name, Lease(entry.model, LeaseFor::kLooking)});
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
