#include "server/models/model_registry.h"

#include <malloc.h>

#include <algorithm>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/thread_name.h"
#include "engine/base/thread_round.h"

namespace tandem::server {
namespace {

constexpr int kListedNames = 8;  // in an error

// Names of departed models that are remembered for error messages.
constexpr size_t kMaxDeparted = 64;

bool HasFailed(const ServedModel& model) {
  return model.engine != nullptr && model.engine->has_failed();
}

}  // namespace

ModelRegistry::ModelRegistry(bool any_model_name)
    : any_model_name_(any_model_name), thread_([this] { Run(); }) {}

ModelRegistry::~ModelRegistry() {
  Clear();
  {
    const std::lock_guard lock(leases_->mutex);
    stopping_ = true;
  }
  leases_->released.notify_all();
  thread_.join();
}

// Returns a pointer that does not own the model: the registry keeps it while a lease exists.
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
    const ServedModel& model) const {
  const std::lock_guard lock(mutex_);
  return IdleSinceLocked(model);
}

std::optional<std::chrono::steady_clock::time_point> ModelRegistry::IdleSinceLocked(
    const ServedModel& model) const {
  const std::lock_guard lease_lock(leases_->mutex);
  std::optional<std::chrono::steady_clock::time_point> since;
  for (const Entry& each : entries_) {
    if (each.model.get() != &model && each.model->base.get() != &model) continue;
    const auto count = leases_->count.find(each.model.get());
    if (count != leases_->count.end() && count->second.requests > 0) return std::nullopt;
    const auto last = leases_->last_request.at(each.model.get());
    since = std::max(since.value_or(last), last);
  }
  return since;
}

// `on_gone` is called after the last of `models` has ended. Erase has reserved the memory.
void ModelRegistry::Retire(std::vector<std::shared_ptr<const ServedModel>> models,
                           std::function<void()> on_gone) noexcept {
  {
    const std::lock_guard lock(leases_->mutex);
    for (std::shared_ptr<const ServedModel>& model : models) {
      retired_.push_back({std::move(model), nullptr});
    }
    retired_.back().on_gone = std::move(on_gone);
  }
  leases_->released.notify_all();
}

void ModelRegistry::Run() {
  NameThisThread("tandem-models");
  auto look_at = std::chrono::steady_clock::now() + kLookForFailuresEvery;
  std::unique_lock lock(leases_->mutex);
  for (;;) {
    EndRetired(lock);
    if (stopping_) return;
    if (leases_->released.wait_until(lock, look_at) != std::cv_status::timeout) continue;
    lock.unlock();
    RunRound("look for failed models", [&] { RemoveFailed(); });
    lock.lock();
    look_at = std::chrono::steady_clock::now() + kLookForFailuresEvery;
  }
}

void ModelRegistry::EndRetired(std::unique_lock<std::mutex>& lock) {
  for (;;) {
    const auto idle = std::find_if(retired_.begin(), retired_.end(), [&](const Retired& retired) {
      return !leases_->count.contains(retired.model.get());
    });
    if (idle == retired_.end()) return;
    Retired gone = std::move(*idle);
    retired_.erase(idle);
    leases_->last_request.erase(gone.model.get());
    lock.unlock();
    gone.model.reset();  // stops the engine and frees the weights
    if (gone.on_gone) RunRound("end of a model", gone.on_gone);
    gone.on_gone = nullptr;
    lock.lock();
  }
}

// A model whose weights cannot be read already answers every request with 503. Removing it frees
// its name and memory for another load.
void ModelRegistry::RemoveFailed() {
  std::vector<std::shared_ptr<const ServedModel>> failed;
  {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) {
      const bool is_id = entry.name == entry.model->id && !entry.model->base;
      if (is_id && HasFailed(*entry.model)) failed.push_back(entry.model);
    }
  }
  for (const std::shared_ptr<const ServedModel>& model : failed) {
    const bool is_removed = Remove(
        *model, [] { ::malloc_trim(0); }, "it was unloaded because its weights could not be read");
    if (is_removed) spdlog::warn("model_unloading model={} reason=\"damaged\"", model->id);
  }
}

void ModelRegistry::Publish(const std::shared_ptr<const ServedModel>& model,
                            std::vector<NameClaim> names) {
  TANDEM_CHECK(!names.empty() && names.front().name() == model->id);
  const std::lock_guard lock(mutex_);
  const bool is_orphan =
      model->base && std::none_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return entry.model.get() == model->base.get();
      });
  if (is_orphan) throw NotServed(model->base->id);
  // Everything that needs memory precedes the first change that a request can see.
  std::vector<Entry> added;
  for (const NameClaim& claim : names) {
    TANDEM_CHECK(claim.registry_ == this);
    added.push_back({claim.name(), model});
  }
  entries_.reserve(entries_.size() + added.size());
  SetLastRequest(model.get());
  if (const Entry* present = FindEntry(model->id)) {
    // The claim has kept others from publishing under the name.
    TANDEM_CHECK(names.front().replaces_);
    const ServedModel& replaced = *present->model;
    Retire(
        UndoOnFailure([&] { return Erase(replaced, ""); }, [&] { ForgetLastRequest(model.get()); }),
        nullptr);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    names[i].registry_ = nullptr;
    claimed_.erase(names[i].name());
    std::erase_if(departed_, [&](const auto& gone) { return gone.first == names[i].name(); });
    entries_.push_back(std::move(added[i]));
  }
  had_any_ = true;
}

void ModelRegistry::SetLastRequest(const ServedModel* model) {
  const std::lock_guard lock(leases_->mutex);
  leases_->last_request[model] = std::chrono::steady_clock::now();
}

void ModelRegistry::ForgetLastRequest(const ServedModel* model) {
  const std::lock_guard lock(leases_->mutex);
  leases_->last_request.erase(model);
}

// Removes all names of the model and of its adapters. Returns them with the model last; empty if it
// has left already. Reserves the memory for Retire. An exception leaves the registry unchanged.
std::vector<std::shared_ptr<const ServedModel>> ModelRegistry::Erase(const ServedModel& model,
                                                                     const std::string& why) {
  const ServedModel* const gone = &model;
  const auto leaves = [gone](const Entry& entry) {
    return entry.model.get() == gone || entry.model->base.get() == gone;
  };
  std::vector<std::shared_ptr<const ServedModel>> erased;
  for (const Entry& entry : entries_) {
    if (!leaves(entry)) continue;
    if (std::find(erased.begin(), erased.end(), entry.model) == erased.end()) {
      erased.push_back(entry.model);
    }
    if (!why.empty()) departed_.emplace_back(entry.name, why);
  }
  while (departed_.size() > kMaxDeparted) departed_.pop_front();
  {
    const std::lock_guard lock(leases_->mutex);
    retired_.reserve(retired_.size() + erased.size());
  }
  std::erase_if(entries_, leaves);
  std::stable_partition(erased.begin(), erased.end(),
                        [&](const auto& each) { return each.get() != gone; });
  return erased;
}

bool ModelRegistry::Remove(const ServedModel& model, std::function<void()> on_gone,
                           const std::string& why,
                           std::optional<std::chrono::steady_clock::time_point> idle_since) {
  const std::lock_guard lock(mutex_);
  if (idle_since) {
    const auto since = IdleSinceLocked(model);
    if (!since || *since > *idle_since) return false;
  }
  std::vector<std::shared_ptr<const ServedModel>> removed = Erase(model, why);
  if (removed.empty()) return false;
  Retire(std::move(removed), std::move(on_gone));
  return true;
}

const ModelRegistry::Entry* ModelRegistry::FindEntry(const std::string& name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

const ModelRegistry::Entry* ModelRegistry::Resolve(const std::string& name,
                                                   const Viewer& viewer) const {
  if (const auto alias = aliases_.find(name); alias != aliases_.end()) {
    return FindEntry(alias->second);
  }
  const Entry* found = FindEntry(name);
  return found != nullptr && MaySee(viewer, found->model->owner) ? found : nullptr;
}

bool ModelRegistry::Contains(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return FindEntry(name) != nullptr;
}

void ModelRegistry::LoadIfMissing(const std::string& name, const Viewer& viewer) const {
  if (!loader_) return;
  std::string meant = name;
  Viewer loads_for = viewer;
  {
    const std::lock_guard lock(mutex_);
    if (Resolve(name, std::nullopt) != nullptr) return;
    if (const auto alias = aliases_.find(name); alias != aliases_.end()) {
      meant = alias->second;
      loads_for = std::nullopt;
    }
  }
  loader_(meant, loads_for);
}

std::shared_ptr<const ServedModel> ModelRegistry::Find(const std::optional<std::string>& name,
                                                       const Viewer& viewer) const {
  if (name) LoadIfMissing(*name, viewer);
  const std::lock_guard lock(mutex_);
  if (!name && !entries_.empty()) {
    std::set<const ServedModel*> distinct;
    // A request without a name means the model itself, never an adapter.
    for (const Entry& entry : entries_) {
      if (entry.model->adapter || !MaySee(viewer, entry.model->owner)) continue;
      distinct.insert(entry.model.get());
    }
    for (const Entry& entry : entries_) {
      if (distinct.size() == 1 && distinct.contains(entry.model.get())) {
        return Lease(entry.model, LeaseFor::kRequest);
      }
    }
    throw Error(ErrorCode::kInvalidArgument, "model is required, since several models are served")
        .WithParam("model")
        .WithReason("missing_required_parameter");
  }
  if (const Entry* found = Resolve(name.value_or(""), viewer)) {
    return Lease(found->model, LeaseFor::kRequest);
  }
  // A dangling alias does not mean just any model.
  if (any_model_name_ && !entries_.empty() && !aliases_.contains(name.value_or(""))) {
    for (const Entry& entry : entries_) {
      if (MaySee(viewer, entry.model->owner)) return Lease(entry.model, LeaseFor::kRequest);
    }
  }
  throw NotServed(name.value_or(""), viewer);
}

std::shared_ptr<const ServedModel> ModelRegistry::Look(const std::string& name,
                                                       const Viewer& viewer) const {
  LoadIfMissing(name, viewer);
  const std::lock_guard lock(mutex_);
  if (const Entry* found = Resolve(name, viewer)) return Lease(found->model, LeaseFor::kLooking);
  throw NotServed(name, viewer);
}

std::shared_ptr<const ServedModel> ModelRegistry::LookServed(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const Entry* found = FindEntry(name);
  return found == nullptr ? nullptr : Lease(found->model, LeaseFor::kLooking);
}

// A viewer with a restricted view learns nothing about models that it may not see.
Error ModelRegistry::NotServed(const std::string& name, const Viewer& viewer) const {
  if (!had_any_) {
    return Error(ErrorCode::kUnavailable, "no model is loaded yet").WithReason("model_loading");
  }
  const auto alias = aliases_.find(name);
  const std::string& meant = alias == aliases_.end() ? name : alias->second;
  std::string message = name.empty() ? "no model is served"
                                     : "model '" + meant.substr(0, 120) + "' is not served here";
  if (alias != aliases_.end()) {
    message = "'" + name + "' is an alias: " + message;
  }
  for (const auto& [gone, why] : departed_) {
    if (gone == meant && !viewer) message += ": " + why;
  }
  std::string served;
  int n_listed = 0;
  for (const Entry& entry : entries_) {
    if (!MaySee(viewer, entry.model->owner)) continue;
    if (++n_listed > kListedNames) break;
    served += (served.empty() ? "" : ", ") + entry.name;
  }
  message += served.empty() ? "; no model is loaded" : "; served are: " + served;
  return Error(ErrorCode::kNotFound, message).WithParam("model").WithReason("model_not_found");
}

std::vector<ModelRegistry::Entry> ModelRegistry::List(const Viewer& viewer) const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> out;
  out.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    if (!MaySee(viewer, entry.model->owner)) continue;
    out.push_back({entry.name, Lease(entry.model, LeaseFor::kLooking)});
  }
  for (const auto& [name, target] : aliases_) {
    const Entry* found = FindEntry(target);
    if (found != nullptr) out.push_back({name, Lease(found->model, LeaseFor::kLooking)});
  }
  return out;
}

bool ModelRegistry::empty() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty();
}

bool ModelRegistry::all_failed() const {
  const std::lock_guard lock(mutex_);
  return !entries_.empty() && std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return HasFailed(*entry.model);
  });
}

void ModelRegistry::Clear() {
  std::vector<Entry> dropped;  // destroyed after the locks: engines stop here
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
