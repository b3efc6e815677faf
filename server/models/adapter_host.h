#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/memory_ledger.h"
#include "server/jobs/job_supervisor.h"
#include "server/models/adapter_book.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// An adapter to load while the server runs.
struct AdapterLoadSpec {
  std::string name;  // model name in requests
  std::string path;  // absolute path of a PEFT directory
  std::string base;  // a served model; empty: the only one
  bool replace = false;
};

// Loads adapters into running engines, one at a time on its own thread. Reading and packing one
// takes milliseconds to seconds and blocks no other request. Each load is an in-process job if the
// server has jobs. Thread-safe.
class AdapterHost {
 public:
  // How to plan and build an adapter; server/app supplies it.
  struct Maker {
    std::function<MemoryClaim(const AdapterLoadSpec&, const ServedModel& base)> plan;
    std::function<std::shared_ptr<const ServedModel>(
        const AdapterLoadSpec&, std::shared_ptr<const ServedModel> base, MemoryReservation)>
        make;
  };
  // Called once on the host's thread when the load has ended, with the served adapter or with an
  // error. Faults of the named files are kInvalidArgument (invalid_adapter, unsupported_adapter) or
  // kNotFound (path_not_found).
  using OnEnd =
      std::function<void(std::shared_ptr<const ServedModel>, const std::optional<Error>&)>;

  // `jobs` may be null; otherwise it must live until Stop() has returned. `book`: the adapters of
  // all replicas; null without replicas.
  AdapterHost(ModelRegistry& registry, MemoryLedger& ledger, JobSupervisor* jobs, Maker maker,
              std::unique_ptr<AdapterBook> book = nullptr);
  ~AdapterHost();  // Stop()
  AdapterHost(const AdapterHost&) = delete;
  AdapterHost& operator=(const AdapterHost&) = delete;

  // Queues a load. The adapter is checked against its base tensor by tensor, and is served when
  // `on_end` is called with it. `replace` swaps it for the adapter of the same name in one step;
  // requests running on the old one finish on it. Throws without calling `on_end`: kAlreadyExists
  // for a taken name, kNotFound (model_not_found) or kInvalidArgument for the base, kUnavailable
  // (shutting_down). Every later fault goes to `on_end`.
  void Load(const AdapterLoadSpec& spec, const std::string& request_json, OnEnd on_end);

  // Removes the adapter from the registry; requests running on it finish. Throws kNotFound
  // (adapter_not_found).
  void Unload(const std::string& name);

  // Takes over what other replicas have: unloads what they unloaded, and loads again what they
  // replaced, on the calling thread. Adapters that cannot be loaded are logged. Throws as
  // AdapterBook.
  void FollowBook();
  // Adapters of other replicas that no request has used here; sorted by name.
  std::vector<SharedAdapter> Unloaded() const;
  // Loads such an adapter at its first use, on the calling thread. Returns false if there is none
  // of that name. Throws kDataLoss for another content than the other replicas serve, and as
  // loading.
  bool LoadShared(const std::string& name);

  // Waits for the running load. Loads still queued fail with shutting_down.
  void Stop();

 private:
  struct Task {
    AdapterLoadSpec spec;
    NameClaim name;
    std::shared_ptr<const ServedModel> base;
    std::string job_id;  // empty: the server has no jobs
    OnEnd on_end;
    bool has_ended = false;  // the job is
  };

  std::shared_ptr<const ServedModel> FindBase(const std::string& name) const;
  std::shared_ptr<const ServedModel> LoadOne(Task& task);
  void LoadFromBook(const SharedAdapter& adapter, std::shared_ptr<const ServedModel> base);
  void Replace(const SharedAdapter& adapter, const ServedModel& served);
  std::optional<SharedAdapter> FindShared(const std::string& name) const;
  void RemoveFromBook(const std::string& name);
  void EndJob(Task& task, const OwnEnd& end);
  void EndWithoutMemory(Task& task);
  void LoadAndEnd(Task& task, bool is_late);
  void Run();

  ModelRegistry& registry_;
  MemoryLedger& ledger_;
  JobSupervisor* const jobs_;
  const Maker maker_;
  const std::unique_ptr<AdapterBook> book_;
  std::mutex book_mutex_;  // held while registry and book differ; guards the next
  std::set<std::string> from_book_;
  mutable std::mutex shared_mutex_;              // guards the next; taken last
  std::map<std::string, SharedAdapter> shared_;  // the book, as it was read last
  std::mutex mutex_;                             // guards the next two
  std::deque<Task> queue_;
  bool is_stopped_ = false;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace tandem::server
