#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/base/memory_ledger.h"
#include "server/jobs/job_supervisor.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// An adapter to load while the server runs.
struct AdapterLoadSpec {
  std::string name;  // what requests call it
  std::string path;  // an absolute path of a PEFT directory
  std::string base;  // a served model; empty: the only one
  bool replace = false;
};

// Loads adapters into engines that run, one after the other on a thread of its own: reading and
// packing one takes from milliseconds to seconds, for which nobody else waits. Each load is a job
// of this process's own where there are jobs at all. Any thread.
class AdapterHost {
 public:
  // How adapters are made; the floor above knows.
  struct Maker {
    std::function<MemoryClaim(const AdapterLoadSpec&, const ServedModel& base)> plan;
    std::function<std::shared_ptr<const ServedModel>(
        const AdapterLoadSpec&, std::shared_ptr<const ServedModel> base, MemoryReservation)>
        make;
  };
  // Called once, on the host's thread, when the job has ended: with the served adapter, or with why
  // there is none: kInvalidArgument (invalid_adapter, unsupported_adapter) or kNotFound
  // (path_not_found) for files that the request named.
  using OnEnd = std::function<void(std::shared_ptr<const ServedModel>, std::exception_ptr)>;

  // `jobs` may be null; else it outlives Stop().
  AdapterHost(ModelRegistry& registry, MemoryLedger& ledger, JobSupervisor* jobs, Maker maker);
  ~AdapterHost();  // Stop()
  AdapterHost(const AdapterHost&) = delete;
  AdapterHost& operator=(const AdapterHost&) = delete;

  // The adapter answers requests when `on_end` is called, checked against its base tensor by
  // tensor; with `replace` it takes the place of an adapter of the same name in one step: requests
  // on that one end on it. Throws at once kAlreadyExists for a name that is taken, kNotFound
  // (model_not_found) and kInvalidArgument for the base, and kUnavailable (shutting_down), and
  // there is no job then; the rest goes to `on_end`.
  void Load(const AdapterLoadSpec& spec, const std::string& request_json, OnEnd on_end);

  // No name means it any more; requests running on it end on it. Throws kNotFound
  // (adapter_not_found).
  void Unload(const std::string& name);

  // Loads that have not begun end with shutting_down.
  void Stop();

 private:
  struct Task {
    AdapterLoadSpec spec;
    NameClaim name;
    std::shared_ptr<const ServedModel> base;
    std::string job_id;  // empty: there are no jobs
    OnEnd on_end;
  };

  std::shared_ptr<const ServedModel> FindBase(const std::string& name) const;
  std::shared_ptr<const ServedModel> LoadOne(Task& task);
  void EndJob(const Task& task, OwnEnd end);
  void LoadAndEnd(Task& task, bool is_late);
  void Run();

  ModelRegistry& registry_;
  MemoryLedger& ledger_;
  JobSupervisor* const jobs_;
  const Maker maker_;
  std::mutex mutex_;  // guards the next two
  std::deque<Task> queue_;
  bool is_stopped_ = false;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace tandem::server
