#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/memory_ledger.h"
#include "engine/engine.h"

namespace tandem::server {

// A model that answers requests. Immutable once published; who has found one may use its engine for
// as long as the pointer is held, whatever happens to the registry meanwhile.
struct ServedModel {
  std::string id;       // canonical: what answers carry
  int64_t created = 0;  // Unix seconds
  std::string owned_by = "local";
  std::string root;    // base id, free of paths
  std::string source;  // of a model with weights: its path, or the name of an embedded one
  std::optional<std::string> parent;  // base id of a tuned model
  bool pinned = false;                // not unloaded for being idle, nor by request unless by force
  int64_t idle_unload_s = 0;          // leaves memory after this long without a request; 0: never
  MemoryReservation memory;           // before the engine: given back when that has ended
  std::shared_ptr<engine::Engine> engine;
  // What the engine's model is adapted with here; null: nothing. With an adapter the engine is the
  // base's, who counts and reports what it does.
  std::shared_ptr<const engine::Adapter> adapter;
  std::shared_ptr<const ServedModel> base;  // with an adapter: the lease that keeps the base
  std::string path;          // of an adapter: its directory, as whoever loaded it has named it
  int64_t adapter_rank = 0;  // the largest of its matrices
  std::string fingerprint;   // of its answers, where an adapter makes it another than the engine's
  std::string provenance;    // where its files come from, a JSON object; empty: they do not say

  const engine::LoadedModel& loaded() const { return engine->loaded(); }
  // Made here by a job, and may be deleted. Everything else belongs to whoever started the server.
  bool is_tuned() const { return owned_by == "user"; }
};

// Whether a request may give this name to a model, an adapter or an alias: kModelNameRule.
bool IsModelName(std::string_view name);
inline constexpr const char* kModelNameRule =
    "1 to 128 characters of [A-Za-z0-9._:/-] without an empty, '.' or '..' segment";

class ModelRegistry;

// A name that is kept for a model still in the making. Moved, not copied; the registry outlives it.
// One thread at a time.
class NameClaim {
 public:
  NameClaim() = default;  // of nothing
  ~NameClaim() { Release(); }
  NameClaim(NameClaim&& other) noexcept;
  NameClaim& operator=(NameClaim&& other) noexcept;

  const std::string& name() const { return name_; }
  void Release();

 private:
  friend class ModelRegistry;
  NameClaim(ModelRegistry* registry, std::string name, bool replaces)
      : registry_(registry), name_(std::move(name)), replaces_(replaces) {}

  ModelRegistry* registry_ = nullptr;  // null: of nothing, or used
  std::string name_;
  bool replaces_ = false;  // a model may have the name until another is published under the claim
};

// Which model a name means. Thread-safe.
//
// A name is given away once: whoever wants to load a model claims its names first, and publishes
// the model under the claims. What two want, the second is refused before it has begun.
//
// The registry owns the models. What it hands out are leases: they keep a model from ending, and
// when a model has left the registry and its last lease is gone, a thread of the registry's ends
// it. So whoever lets go last, be it the model's own engine thread, never has to wait for it.
class ModelRegistry {
 public:
  // With `any_model_name`, unknown names mean the first model.
  explicit ModelRegistry(bool any_model_name);
  ~ModelRegistry();  // Clear()
  ModelRegistry(const ModelRegistry&) = delete;
  ModelRegistry& operator=(const ModelRegistry&) = delete;

  // Throws kAlreadyExists when a model has the name or will have it.
  NameClaim Claim(const std::string& name);
  // For what a job has made: nullopt when the name is taken, but the id of a tuned model is not.
  // The model published under the claim takes that one's place.
  std::optional<NameClaim> TryClaimTuned(const std::string& id);
  // The same for an adapter that takes the place of an adapter. Throws kAlreadyExists when anything
  // else has the name or will have it. The name may also be free.
  NameClaim ClaimForAdapter(const std::string& name);

  // Asked for names that no model has, by Find, Look and SetAlias, without a lock held; may load
  // and publish a model of that name, or throw. Once, before the registry is used.
  void SetLoader(std::function<void(const std::string& name)> loader) {
    loader_ = std::move(loader);
  }

  // The model answers to all the names. Requests running on a model whose place it takes end there.
  // Throws kNotFound (model_not_found) for an adapter whose base has left meanwhile.
  // REQUIRES: the first name is the model's id.
  void Publish(const std::shared_ptr<const ServedModel>& model, std::vector<NameClaim> names);
  bool Contains(const std::string& name) const;
  bool IsClaimed(const std::string& name) const;  // and not yet published

  // No name means the model any more, nor its adapters; requests running on them end first.
  // `on_gone` is called, on a thread that may block, when the last has ended and the model's memory
  // is free; at shutdown it is dropped. False when the model has left already; with `idle_since`
  // also when a request has had it after that time. `why` goes into the answers to requests that
  // still ask for the model: "it was unloaded".
  bool Remove(const ServedModel& model, std::function<void()> on_gone, const std::string& why = "",
              std::optional<std::chrono::steady_clock::time_point> idle_since = {});

  // A name that stands for the one of another model, whatever has that name at the time. Switching
  // it is one step: a request gets the old target or the new one, and ends on what it got.
  struct Alias {
    std::string name;
    std::string target;
    bool is_served = false;  // the target
  };
  // The target that the alias had before. Throws kAlreadyExists when a model has the name or will
  // have it, and kNotFound (model_not_found) with `target` as param unless that is a model's id or
  // other name of its own. With `may_dangle` the target need not be there (yet).
  std::optional<std::string> SetAlias(const std::string& name, const std::string& target,
                                      bool may_dangle = false);
  std::optional<std::string> RemoveAlias(const std::string& name);  // what it stood for
  std::vector<Alias> Aliases() const;                               // by name
  std::optional<Alias> FindAlias(const std::string& name) const;

  // For a request to run on. Throws kNotFound (model_not_found) listing up to eight names; with
  // `name` unset: the only model, adapters not counted, or kInvalidArgument when there are several.
  // Before there was any model: kUnavailable (model_loading).
  std::shared_ptr<const ServedModel> Find(const std::optional<std::string>& name) const;
  // The model of exactly this name, to look at: its idle time goes on. Throws kNotFound as Find.
  std::shared_ptr<const ServedModel> Look(const std::string& name) const;
  // Since when no request has had the model or an adapter of it; nullopt while one has, or when the
  // model has left.
  std::optional<std::chrono::steady_clock::time_point> IdleSince(const ServedModel& model) const;

  struct Entry {
    std::string name;
    std::shared_ptr<const ServedModel> model;
  };
  // In the order of loading, with the other names of models; then aliases whose targets are there.
  std::vector<Entry> List() const;
  bool empty() const;
  // Ends every model, whoever holds leases (shutdown: no request runs any more).
  void Clear();

 private:
  friend class NameClaim;
  enum class LeaseFor { kRequest, kLooking };
  struct Count {
    int64_t leases = 0;
    int64_t requests = 0;  // of these
  };
  // Outlives the registry if leases do.
  struct Leases {
    std::mutex mutex;                           // guards the rest
    std::map<const ServedModel*, Count> count;  // of models that have any
    std::map<const ServedModel*, std::chrono::steady_clock::time_point> last_request;
    std::condition_variable released;  // some count has become zero, or a model was retired
  };
  struct Retired {
    std::shared_ptr<const ServedModel> model;
    std::function<void()> on_gone;
  };

  void LoadIfMissing(const std::string& name) const;
  std::shared_ptr<const ServedModel> Lease(const std::shared_ptr<const ServedModel>& model,
                                           LeaseFor purpose) const;
  // REQUIRES: mutex_ held, for the next six.
  [[noreturn]] void ThrowNotServed(const std::string& name) const;
  const Entry* FindEntry(const std::string& name) const;  // null: none
  const Entry* Resolve(const std::string& name) const;    // the same, aliases followed
  void ThrowIfTaken(const std::string& name) const;
  std::vector<std::shared_ptr<const ServedModel>> Erase(const ServedModel& model,
                                                        const std::string& why);
  std::optional<std::chrono::steady_clock::time_point> IdleSinceLocked(
      const ServedModel& model) const;

  void Retire(std::vector<std::shared_ptr<const ServedModel>> models,
              std::function<void()> on_gone);
  void Unclaim(const std::string& name);
  void EndRetired();  // the thread

  const bool any_model_name_;
  std::function<void(const std::string& name)> loader_;
  mutable std::mutex mutex_;  // guards the next five
  std::vector<Entry> entries_;
  std::map<std::string, std::string> aliases_;  // name to target, which may be gone
  std::set<std::string> claimed_;               // by claims that live
  bool had_any_ = false;
  std::deque<std::pair<std::string, std::string>> departed_;  // names, and why they have gone
  const std::shared_ptr<Leases> leases_ = std::make_shared<Leases>();
  std::vector<Retired> retired_;  // guarded by leases_->mutex, as the next
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::server
