#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/memory_ledger.h"
#include "engine/engine.h"
#include "server/jobs/job_supervisor.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// A model to load while the server runs.
struct ModelLoadSpec {
  std::string source;        // absolute path, or the name of an embedded model
  bool is_embedded = false;  // `source` is the name of an embedded model
  std::string id;
  std::optional<int64_t> max_model_len;  // unset: the server's start-up option
  std::optional<std::string> dtype;      // "auto", "f32", …; unset: the start-up option
  bool pinned = false;
  int64_t idle_unload_s = 0;          // 0: never
  std::optional<std::string> parent;  // base id of a model that a job of this server has tuned
  std::optional<int64_t> owner = {};  // as ServedModel::owner
};

// Loads and unloads models while others answer. Each load and unload is an in-process job. Loads
// run one at a time on a thread of the host; an unload ends with the last request of its model.
// Name and memory are claimed before a load is accepted. Thread-safe. Lock order: host, registry,
// leases. JobSupervisor has its own lock and makes no callback under it.
class ModelHost {
 public:
  // How to plan and build a model; server/app supplies it.
  struct Maker {
    std::function<engine::MemoryPlan(const ModelLoadSpec&)> plan;
    // `progress` is called with the fraction done; an exception from it aborts the load.
    std::function<std::shared_ptr<const ServedModel>(const ModelLoadSpec&, MemoryReservation,
                                                     const std::function<void(double)>& progress)>
        make;
  };
  // Called once with the finished job, on a thread that may block.
  using OnEnd = std::function<void(const Job&)>;

  ModelHost(ModelRegistry& registry, MemoryLedger& ledger, JobSupervisor& jobs, Maker maker);
  ~ModelHost();  // Stop(). REQUIRES: the registry has been destroyed or cleared
  ModelHost(const ModelHost&) = delete;
  ModelHost& operator=(const ModelHost&) = delete;

  // Queues a load. Throws kAlreadyExists (already_exists, in_use) for an id in use or claimed, and
  // kUnavailable (out_of_memory) with the arithmetic. An unusable source fails the job instead.
  // `on_end` may be empty. Cancelling a queued load ends it at once.
  Job Load(const ModelLoadSpec& spec, const std::string& request_json, OnEnd on_end);

  // The memory that a load would need. Reserves nothing. Throws as Maker::plan.
  engine::MemoryPlan Plan(const ModelLoadSpec& spec) const { return maker_.plan(spec); }

  // Removes a model from the registry. Its requests finish first, or are ended at once with
  // `force`. A second call for a model that is leaving returns the same job, and may add force.
  // Throws kNotFound (model_not_found), and kAlreadyExists (in_use) for an alias, an adapter, a
  // model that is being loaded, and a pinned model without force.
  Job Unload(const std::string& name, bool force, const std::string& request_json, OnEnd on_end);

  // Facts about a model, known before it is loaded.
  struct About {
    std::string format = {};    // empty: unknown
    std::string dtype = {};     // empty: unknown
    int64_t max_model_len = 0;  // 0: unknown
  };
  // A model that is not in the registry.
  struct Other {
    enum class State { kLoading, kUnloading, kFailed };
    std::string id;
    State state = State::kLoading;
    std::string job_id = {};
    About about = {};
    MemoryClaim memory = {};           // its share of the budget
    double progress = 0;               // kLoading only, in [0, 1]
    std::string error = {};            // kFailed only
    int64_t running = 0, waiting = 0;  // requests, kUnloading only
    bool pinned = false;
    int64_t idle_unload_s = 0;
  };
  // A consistent snapshot of all models. A name may occur twice: a model that is leaving, and its
  // successor that a job has published.
  struct Listing {
    std::vector<ModelRegistry::Entry> served;
    std::vector<Other> others;  // includes failed loads of the last hour, 16 at most
  };
  Listing List() const;

  // Aborts the running load and the queued ones; they end as failed (interrupted). Unloads
  // continue.
  void StopLoading();
  // Also ends unloads, as failed (interrupted). Afterwards the host touches no job.
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;

  struct Loading {
    ModelLoadSpec spec;
    NameClaim name;
    std::string job_id;        // empty: not accepted yet
    MemoryReservation memory;  // one thread uses it at a time
    MemoryClaim claim;         // copy of memory's claim for List
    About about;
    OnEnd on_end;
    std::atomic<bool> is_cancelled{false};
    std::atomic<double> progress{0};
  };
  struct Unloading {
    std::string id;
    std::vector<std::string> names;  // every name of the model
    std::string job_id;
    std::weak_ptr<engine::Engine> engine;
    std::optional<engine::EngineFigures> figures;  // reset when the model is gone
    About about;
    bool pinned = false;
    int64_t idle_unload_s = 0;
    MemoryClaim memory;
    std::vector<OnEnd> on_end;
  };
  struct Failed {
    Other model;
    Clock::time_point at;
  };

  // The next five REQUIRE mutex_ held.
  NameClaim ClaimName(const std::string& id);
  void ListFailure(const Loading& loading, const OwnEnd& end);
  void ForgetOldFailures();
  std::optional<Clock::time_point> UnloadIdle();  // returns when to check again; unset: no model
  // Returns the new job. It has ended if the model has left already or, with `idle_since`, if a
  // request has used the model since then.
  Job BeginUnload(const ServedModel& model, const std::string& request_json, const std::string& why,
                  const OnEnd& on_end, std::optional<Clock::time_point> idle_since);

  // Plans the model and reserves its memory. Throws as Maker::plan, and kUnavailable
  // (out_of_memory).
  void ClaimMemory(Loading& loading);
  void RunLoads();
  void LoadOne(const std::shared_ptr<Loading>& loading);
  void EndWithoutMemory(const std::shared_ptr<Loading>& loading);
  void CancelLoad(const std::shared_ptr<Loading>& loading);
  Job EndLoad(const std::shared_ptr<Loading>& loading, OwnEnd end);
  void WatchIdle();
  void OnGone(const std::shared_ptr<Unloading>& leaving);

  ModelRegistry& registry_;
  MemoryLedger& ledger_;
  JobSupervisor& jobs_;
  const Maker maker_;

  mutable std::mutex mutex_;  // guards everything below except the threads
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Loading>> queue_;         // accepted, oldest first
  std::vector<std::shared_ptr<Loading>> loading_;      // being accepted, queued or running
  std::vector<std::shared_ptr<Unloading>> unloading_;  // oldest first; an id may occur twice
  std::deque<Failed> failed_;
  bool stops_loading_ = false;
  bool is_stopped_ = false;
  std::thread loads_;
  std::thread idle_;  // separate from loads_: a load may take minutes
};

}  // namespace tandem::server
