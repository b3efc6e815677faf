#include "server/models/model_registry.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/thread_name.h"

namespace tandem::server {
namespace {

// Names of departed models that are remembered for error messages.
constexpr size_t kMaxDeparted = 64;

}  // namespace

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

// `on_gone` is called after the last of `models` has ended.
void ModelRegistry::Retire(std::vector<std::shared_ptr<const ServedModel>> models,
                           std::function<void()> on_gone) {
  {
    const std::lock_guard lock(leases_->mutex);
    for (size_t i = 0; i < models.size(); ++i) {
      retired_.push_back({std::move(models[i]), nullptr});
    }
    retired_.back().on_gone = std::move(on_gone);
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
    gone.model.reset();  // stops the engine and frees the weights
    if (gone.on_gone) gone.on_gone();
    gone.on_gone = nullptr;
    lock.lock();
  }
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
    throw Error(ErrorCode::kAlreadyExists,
                "'" + name + "' is the name of a model, which no adapter can replace")
        .WithReason("already_exists");
  }
  claimed_.insert(name);
  return {this, name, true};
}

void ModelRegistry::Unclaim(const std::string& name) {
  const std::lock_guard lock(mutex_);
  claimed_.erase(name);
}

void ModelRegistry::Publish(const std::shared_ptr<const ServedModel>& model,
                            std::vector<NameClaim> names) {
  TANDEM_CHECK(!names.empty() && names.front().name() == model->id);
  std::vector<std::shared_ptr<const ServedModel>> replaced;
  {
    const std::lock_guard lock(mutex_);
    const bool is_orphan =
        model->base && std::none_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
          return entry.model.get() == model->base.get();
        });
    if (is_orphan) ThrowNotServed(model->base->id);
    if (const Entry* present = FindEntry(model->id)) {
      // The claim has kept others from publishing under the name.
      TANDEM_CHECK(names.front().replaces_);
      replaced = Erase(*present->model, "");
    }
    for (NameClaim& claim : names) {
      TANDEM_CHECK(claim.registry_ == this);
      claim.registry_ = nullptr;
      claimed_.erase(claim.name());
      entries_.push_back({claim.name(), model});
      std::erase_if(departed_, [&](const auto& gone) { return gone.first == claim.name(); });
    }
    had_any_ = true;
    const std::lock_guard lease_lock(leases_->mutex);
    leases_->last_request[model.get()] = std::chrono::steady_clock::now();
  }
  if (!replaced.empty()) Retire(std::move(replaced), nullptr);
}

// Removes all names of the model and of its adapters. Returns them with the model last; empty if it
// has left already.
std::vector<std::shared_ptr<const ServedModel>> ModelRegistry::Erase(const ServedModel& model,
                                                                     const std::string& why) {
  std::vector<std::shared_ptr<const ServedModel>> erased;
  const ServedModel* gone = &model;
  std::erase_if(entries_, [&](const Entry& entry) {
    if (entry.model.get() != gone && entry.model->base.get() != gone) return false;
    if (std::find(erased.begin(), erased.end(), entry.model) == erased.end()) {
      erased.push_back(entry.model);
    }
    if (!why.empty()) departed_.emplace_back(entry.name, why);
    return true;
  });
  while (departed_.size() > kMaxDeparted) departed_.pop_front();
  std::stable_partition(erased.begin(), erased.end(),
                        [&](const auto& each) { return each.get() != gone; });
  return erased;
}

bool ModelRegistry::Remove(const ServedModel& model, std::function<void()> on_gone,
                           const std::string& why,
                           std::optional<std::chrono::steady_clock::time_point> idle_since) {
  std::vector<std::shared_ptr<const ServedModel>> removed;
  {
    const std::lock_guard lock(mutex_);
    if (idle_since) {
      const auto since = IdleSinceLocked(model);
      if (!since || *since > *idle_since) return false;
    }
    removed = Erase(model, why);
  }
  if (removed.empty()) return false;
  Retire(std::move(removed), std::move(on_gone));
  return true;
}

const ModelRegistry::Entry* ModelRegistry::FindEntry(const std::string& name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

const ModelRegistry::Entry* ModelRegistry::Resolve(const std::string& name) const {
  const auto alias = aliases_.find(name);
  return FindEntry(alias == aliases_.end() ? name : alias->second);
}

std::optional<std::string> ModelRegistry::SetAlias(const std::string& name,
                                                   const std::string& target, bool may_dangle) {
  if (!may_dangle) LoadIfMissing(target);
  const std::lock_guard lock(mutex_);
  const auto present = aliases_.find(name);
  if (present == aliases_.end()) ThrowIfTaken(name);
  if (aliases_.contains(target)) {
    throw Error(ErrorCode::kInvalidArgument,
                "'" + target + "' is an alias itself: name the model that it stands for, '" +
                    aliases_.at(target) + "'")
        .WithParam("target")
        .WithReason("invalid_value");
  }
  if (!may_dangle && FindEntry(target) == nullptr) {
    try {
      ThrowNotServed(target);
    } catch (const Error& error) {
      throw Error(error).WithParam("target");
    }
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

bool ModelRegistry::IsClaimed(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return claimed_.contains(name);
}

bool ModelRegistry::Contains(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return FindEntry(name) != nullptr;
}

void ModelRegistry::LoadIfMissing(const std::string& name) const {
  if (!loader_) return;
  std::string meant = name;
  {
    const std::lock_guard lock(mutex_);
    if (Resolve(name) != nullptr) return;
    if (const auto alias = aliases_.find(name); alias != aliases_.end()) meant = alias->second;
  }
  loader_(meant);
}

std::shared_ptr<const ServedModel> ModelRegistry::Find(
    const std::optional<std::string>& name) const {
  if (name) LoadIfMissing(*name);
  const std::lock_guard lock(mutex_);
  if (!name && !entries_.empty()) {
    std::set<const ServedModel*> distinct;
    // A request without a name means the model itself, never an adapter.
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
  if (const Entry* found = Resolve(name.value_or(""))) {
    return Lease(found->model, LeaseFor::kRequest);
  }
  // A dangling alias does not mean just any model.
  if (any_model_name_ && !entries_.empty() && !aliases_.contains(name.value_or(""))) {
    return Lease(entries_.front().model, LeaseFor::kRequest);
  }
  ThrowNotServed(name.value_or(""));
}

std::shared_ptr<const ServedModel> ModelRegistry::Look(const std::string& name) const {
  LoadIfMissing(name);
  const std::lock_guard lock(mutex_);
  if (const Entry* found = Resolve(name)) return Lease(found->model, LeaseFor::kLooking);
  ThrowNotServed(name);
}

void ModelRegistry::ThrowNotServed(const std::string& name) const {
  if (!had_any_) {
    throw Error(ErrorCode::kUnavailable, "no model is loaded yet").WithReason("model_loading");
  }
  const auto alias = aliases_.find(name);
  const std::string& meant = alias == aliases_.end() ? name : alias->second;
  std::string message = name.empty() ? "no model is served"
                                     : "model '" + meant.substr(0, 120) + "' is not served here";
  if (alias != aliases_.end()) {
    message = "'" + name + "' is an alias: " + message;
  }
  for (const auto& [gone, why] : departed_) {
    if (gone == meant) message += ": " + why;
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
