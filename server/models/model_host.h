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
  std::string source;        // an absolute path
  bool is_embedded = false;  // or the name of an embedded model
  std::string id;
  std::optional<int64_t> max_model_len;  // unset: as the server was started with
  std::optional<std::string> dtype;      // "auto", "f32", …; unset: the same
  bool pinned = false;
  int64_t idle_unload_s = 0;          // 0: never
  std::optional<std::string> parent;  // what it was tuned from; set: made here, by a job
};

// Loads and unloads models while others answer. Each is a job of this process's own: loads run one
// after the other on a thread of the host, unloads end with the last request of their model.
// Name and memory are claimed before a load is accepted. Any thread. Locks are taken in the order
// host, registry, leases; jobs have their own, under which nobody calls back.
class ModelHost {
 public:
  // How models are made; the floor above knows.
  struct Maker {
    std::function<engine::MemoryPlan(const ModelLoadSpec&)> plan;
    // `progress` is called with what part is done; what it throws ends the loading.
    std::function<std::shared_ptr<const ServedModel>(const ModelLoadSpec&, MemoryReservation,
                                                     const std::function<void(double)>& progress)>
        make;
  };
  // Called once with the finished job, on a thread that may block.
  using OnEnd = std::function<void(const Job&)>;

  ModelHost(ModelRegistry& registry, MemoryLedger& ledger, JobSupervisor& jobs, Maker maker);
  ~ModelHost();  // Stop(); after the registry's last model has gone
  ModelHost(const ModelHost&) = delete;
  ModelHost& operator=(const ModelHost&) = delete;

  // Queues a load. Throws kAlreadyExists (already_exists, in_use) for an id that a model has or
  // will have, and kUnavailable (out_of_memory) with the arithmetic. A source that turns out
  // unusable makes the job fail instead. `on_end` may be empty. A load that is cancelled before its
  // turn ends at once.
  Job Load(const ModelLoadSpec& spec, const std::string& request_json, OnEnd on_end);

  // Takes a model from the registry: its requests end first, or at once with `force`. Unloading it
  // a second time is the same job, and may add force. Throws kNotFound (model_not_found), and
  // kAlreadyExists (in_use) for a pinned model without force and one that is still being loaded.
  Job Unload(const std::string& name, bool force, const std::string& request_json, OnEnd on_end);

  // What is known of a model before it is loaded.
  struct About {
    std::string format = {};    // empty: not known
    std::string dtype = {};     // the same
    int64_t max_model_len = 0;  // 0: the same
  };
  // Models that are not in the registry.
  struct Other {
    enum class State { kLoading, kUnloading, kFailed };
    std::string id;
    State state = State::kLoading;
    std::string job_id = {};
    About about = {};
    MemoryClaim memory = {};           // what it holds of the budget
    double progress = 0;               // of kLoading
    std::string error = {};            // of kFailed
    int64_t running = 0, waiting = 0;  // of kUnloading
    bool pinned = false;
    int64_t idle_unload_s = 0;
  };
  // Every model as of one moment. A name may stand there twice: a model that leaves, and the one
  // that a job has published meanwhile.
  struct Listing {
    std::vector<ModelRegistry::Entry> served;
    std::vector<Other> others;  // the last failed loads among them, for an hour
  };
  Listing List() const;

  // Gives up the load under way and those queued; they end as failed (interrupted). Unloads go on.
  void StopLoading();
  // No job of the host's is touched any more; unloads under way end as failed (interrupted).
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;

  struct Loading {
    ModelLoadSpec spec;
    NameClaim name;
    std::string job_id;        // empty: not accepted yet
    MemoryReservation memory;  // used by one thread after the other
    MemoryClaim claim;         // what that holds, for others to see
    About about;
    OnEnd on_end;
    std::atomic<bool> is_cancelled{false};
    std::atomic<double> progress{0};
  };
  struct Unloading {
    std::string id;
    std::vector<std::string> names;  // all that the model had
    std::string job_id;
    std::weak_ptr<engine::Engine> engine;
    std::optional<engine::EngineFigures> figures;  // until it has gone
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

  // REQUIRES: mutex_ held, for all of these.
  NameClaim ClaimName(const std::string& id);
  void ForgetOldFailures();
  std::optional<Clock::time_point> UnloadIdle();  // when to look again
  void UnloadFailed();
  // The new job; an ended one if the model has left already or, with `idle_since`, is used again.
  Job BeginUnload(const ServedModel& model, const std::string& request_json, const std::string& why,
                  const OnEnd& on_end, std::optional<Clock::time_point> idle_since);

  // Plans the model and takes its memory. Throws what planning does, and kUnavailable.
  void ClaimMemory(Loading& loading);
  void RunLoads();
  void LoadOne(const std::shared_ptr<Loading>& loading);
  void CancelLoad(const std::shared_ptr<Loading>& loading);
  Job EndLoad(const std::shared_ptr<Loading>& loading, OwnEnd end);
  void WatchIdle();
  void OnGone(const std::shared_ptr<Unloading>& leaving);

  ModelRegistry& registry_;
  MemoryLedger& ledger_;
  JobSupervisor& jobs_;
  const Maker maker_;

  mutable std::mutex mutex_;  // guards the rest but the threads
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Loading>> queue_;         // accepted, oldest first
  std::vector<std::shared_ptr<Loading>> loading_;      // being accepted, queued, running
  std::vector<std::shared_ptr<Unloading>> unloading_;  // oldest first; ids may come twice
  std::deque<Failed> failed_;
  bool stops_loading_ = false;
  bool is_stopped_ = false;
  std::thread loads_;
  std::thread idle_;  // apart, for a load may take minutes
};

}  // namespace tandem::server
