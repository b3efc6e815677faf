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
#include "server/keys/ownership.h"

namespace tandem::server {

// A model that answers requests. Immutable once published. A caller may use its engine for as long
// as it holds the pointer, whatever happens to the registry meanwhile.
struct ServedModel {
  std::string id;       // canonical name, which responses carry
  int64_t created = 0;  // Unix seconds
  std::string owned_by = "local";
  std::optional<int64_t> owner;       // client number of the key whose job made it; nullopt: none
  std::string root;                   // base id, without paths
  std::string source;                 // path or embedded name; empty for an adapter
  std::optional<std::string> parent;  // base id of a tuned model
  bool pinned = false;                // never unloaded as idle; by request only with force
  int64_t idle_unload_s = 0;          // unloaded after this long without a request; 0: never
  MemoryReservation memory;           // before `engine`: released after the engine has ended
  std::shared_ptr<engine::Engine> engine;
  // Null for a model with its own weights. A model with an adapter uses the engine of its base,
  // whose metrics include the adapter's requests.
  std::shared_ptr<const engine::Adapter> adapter;
  std::shared_ptr<const ServedModel> base;  // with an adapter: the lease that keeps the base alive
  std::string path;                         // an adapter's directory, as given by its loader
  int64_t adapter_rank = 0;                 // largest rank of its matrices
  std::string fingerprint;                  // system_fingerprint of an adapter; empty: the engine's
  std::string provenance;                   // origin of its files, a JSON object; empty: unknown

  const engine::LoadedModel& loaded() const { return engine->loaded(); }
  // Whether a job of this server made the model, so that it may be deleted. All other models belong
  // to the operator.
  bool is_tuned() const { return owned_by == "user"; }
};

// Whether a request may give this name to a model, an adapter or an alias: kModelNameRule.
bool IsModelName(std::string_view name);
inline constexpr const char* kModelNameRule =
    "1 to 128 characters of [A-Za-z0-9._:/-] without an empty, '.' or '..' segment";

class ModelRegistry;

// Reserves a name for a model that is being made. Move-only; the registry must outlive it. For one
// thread at a time.
class NameClaim {
 public:
  NameClaim() = default;  // claims nothing
  ~NameClaim() { Release(); }
  NameClaim(NameClaim&& other) noexcept;
  NameClaim& operator=(NameClaim&& other) noexcept;

  const std::string& name() const { return name_; }
  void Release();

 private:
  friend class ModelRegistry;
  NameClaim(ModelRegistry* registry, std::string name, bool replaces)
      : registry_(registry), name_(std::move(name)), replaces_(replaces) {}

  ModelRegistry* registry_ = nullptr;  // null: claims nothing, or the model is published
  std::string name_;
  bool replaces_ = false;  // a model may keep the name until Publish replaces it
};

// Maps names to models. Thread-safe.
//
// A loader claims the names of a model first and publishes the model under these claims. So the
// second of two loaders of the same name is refused before it starts to load.
//
// The registry owns the models and hands out leases, which keep a model alive. When a model has
// left the registry and its last lease is gone, a thread of the registry destroys it. So the thread
// that drops the last lease, which may be the model's own engine thread, never destroys the model.
// This thread also removes models whose engine has failed, within kLookForFailuresEvery.
class ModelRegistry {
 public:
  static constexpr std::chrono::seconds kLookForFailuresEvery{1};

  // With `any_model_name`, unknown names mean the first model.
  explicit ModelRegistry(bool any_model_name);
  ~ModelRegistry();  // Clear()
  ModelRegistry(const ModelRegistry&) = delete;
  ModelRegistry& operator=(const ModelRegistry&) = delete;

  // Throws kAlreadyExists if the name is a model's or an alias, or is claimed.
  NameClaim Claim(const std::string& name);
  // For the model of a job. Returns nullopt if the name is taken, except by a tuned model with that
  // id: publishing under the claim replaces it.
  std::optional<NameClaim> TryClaimTuned(const std::string& id);
  // For an adapter that may replace an adapter of that name. The name may also be free. Throws
  // kAlreadyExists otherwise.
  NameClaim ClaimForAdapter(const std::string& name);

  // Find, Look and SetAlias call `loader`, without a lock held, for a name that no model has. It
  // may load and publish such a model for the viewer, or throw. Call once, before the registry is
  // used.
  using Loader = std::function<void(const std::string& name, const Viewer& viewer)>;
  void SetLoader(Loader loader) { loader_ = std::move(loader); }

  // Serves the model under all the names. Requests running on a replaced model finish on it. Throws
  // kNotFound (model_not_found) for an adapter whose base has left meanwhile.
  // REQUIRES: the first name is the model's id.
  void Publish(const std::shared_ptr<const ServedModel>& model, std::vector<NameClaim> names);
  bool Contains(const std::string& name) const;
  bool IsClaimed(const std::string& name) const;  // claimed and not yet published

  // Removes all names of the model and of its adapters; requests running on them finish first.
  // Then its memory is released, and `on_gone` is called on a thread that may block; a shutdown
  // drops it. Returns false if the model has left already, or if a request has used it after
  // `idle_since`. `why` ("it was unloaded") goes into the errors of later requests for the model.
  bool Remove(const ServedModel& model, std::function<void()> on_gone, const std::string& why = "",
              std::optional<std::chrono::steady_clock::time_point> idle_since = {});

  // A name for another name: it means whatever model has the target name at the time. A change is
  // atomic: a request resolves to the old target or to the new one, and finishes there.
  struct Alias {
    std::string name;
    std::string target;
    bool is_served = false;  // whether a model has the target name
  };
  // Returns the previous target. Throws kAlreadyExists if a model has or has claimed the name, and
  // kInvalidArgument if `target` is an alias. Throws kNotFound (model_not_found, with `target` as
  // param) if no model has the name `target`, unless `may_dangle` is set.
  std::optional<std::string> SetAlias(const std::string& name, const std::string& target,
                                      bool may_dangle = false);
  std::optional<std::string> RemoveAlias(const std::string& name);  // returns its target
  std::vector<Alias> Aliases() const;                               // sorted by name
  std::optional<Alias> FindAlias(const std::string& name) const;

  // Leases a model for a request. Without a name: the only model (adapters do not count), or
  // kInvalidArgument if there are several. Throws kNotFound (model_not_found) with up to eight
  // served names, and kUnavailable (model_loading) before the first model is published.
  // A model that the viewer may not see counts as absent. An alias shares its target with everyone.
  std::shared_ptr<const ServedModel> Find(const std::optional<std::string>& name,
                                          const Viewer& viewer = std::nullopt) const;
  // Leases the model of exactly this name (or alias) for inspection; does not count as use, so its
  // idle time continues. Throws as Find.
  std::shared_ptr<const ServedModel> Look(const std::string& name,
                                          const Viewer& viewer = std::nullopt) const;
  // As Look, but never calls the loader, so a lock that the loader takes may be held. Null if no
  // model has exactly this name.
  std::shared_ptr<const ServedModel> LookServed(const std::string& name) const;
  // The end of the last request on the model or one of its adapters; nullopt while one runs, or if
  // the model has left.
  std::optional<std::chrono::steady_clock::time_point> IdleSince(const ServedModel& model) const;

  struct Entry {
    std::string name;
    std::shared_ptr<const ServedModel> model;
  };
  // Every name of every model in the order of loading, then the aliases with a served target.
  std::vector<Entry> List(const Viewer& viewer = std::nullopt) const;
  bool empty() const;
  // Whether every model has an engine that has failed. False without models.
  bool all_failed() const;
  // Destroys every model despite leases. For shutdown, when no request runs.
  void Clear();

 private:
  friend class NameClaim;
  enum class LeaseFor { kRequest, kLooking };
  struct Count {
    int64_t leases = 0;
    int64_t requests = 0;  // leases for requests
  };
  // Shared with the leases, which may outlive the registry.
  struct Leases {
    std::mutex mutex;                           // guards the rest
    std::map<const ServedModel*, Count> count;  // models with at least one lease
    std::map<const ServedModel*, std::chrono::steady_clock::time_point> last_request;
    std::condition_variable released;  // some count has become zero, or a model was retired
  };
  struct Retired {
    std::shared_ptr<const ServedModel> model;
    std::function<void()> on_gone;
  };

  void LoadIfMissing(const std::string& name, const Viewer& viewer) const;
  std::shared_ptr<const ServedModel> Lease(const std::shared_ptr<const ServedModel>& model,
                                           LeaseFor purpose) const;
  // The next seven REQUIRE mutex_ held.
  Error NotServed(const std::string& name, const Viewer& viewer = std::nullopt) const;
  const Entry* FindEntry(const std::string& name) const;  // null: none
  // As FindEntry, but follows aliases, and skips models that the viewer may not see.
  const Entry* Resolve(const std::string& name, const Viewer& viewer) const;
  void ThrowIfTaken(const std::string& name) const;
  std::vector<std::shared_ptr<const ServedModel>> Erase(const ServedModel& model,
                                                        const std::string& why);
  std::optional<std::chrono::steady_clock::time_point> IdleSinceLocked(
      const ServedModel& model) const;

  void SetLastRequest(const ServedModel* model);
  void ForgetLastRequest(const ServedModel* model);
  void Retire(std::vector<std::shared_ptr<const ServedModel>> models,
              std::function<void()> on_gone) noexcept;

  void Unclaim(const std::string& name);
  void RemoveFailed();
  void Run();  // body of thread_
  // Destroys the retired models without leases. REQUIRES `lock` to hold leases_->mutex.
  void EndRetired(std::unique_lock<std::mutex>& lock);

  const bool any_model_name_;
  Loader loader_;
  mutable std::mutex mutex_;  // guards the next five members
  std::vector<Entry> entries_;
  std::map<std::string, std::string> aliases_;                // name to target, which may be gone
  std::set<std::string> claimed_;                             // names of live claims
  bool had_any_ = false;                                      // whether a model was ever published
  std::deque<std::pair<std::string, std::string>> departed_;  // names, and why they have gone
  const std::shared_ptr<Leases> leases_ = std::make_shared<Leases>();
  std::vector<Retired> retired_;  // this and stopping_: guarded by leases_->mutex
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::server
