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
#include "server/handlers/model_registry.h"

namespace tandem::server {

// An adapter to load while the server runs.
struct AdapterLoadSpec {
  std::string name;  // what requests call it
  std::string path;  // an absolute path of a PEFT directory
  std::string base;  // a served model; empty: the only one
  bool replace = false;
};

// Loads adapters into engines that run, one after the other on a thread of its own: reading and
// packing one takes from milliseconds to seconds, for which nobody else waits. Any thread.
class AdapterHost {
 public:
  // How adapters are made; the floor above knows.
  struct Maker {
    std::function<MemoryClaim(const AdapterLoadSpec&, const ServedModel& base)> plan;
    std::function<std::shared_ptr<const ServedModel>(
        const AdapterLoadSpec&, std::shared_ptr<const ServedModel> base, MemoryReservation)>
        make;
  };
  // Called once, on the host's thread: with the served adapter, or with why there is none.
  using OnEnd = std::function<void(std::shared_ptr<const ServedModel>, std::exception_ptr)>;

  AdapterHost(ModelRegistry& registry, MemoryLedger& ledger, Maker maker);
  ~AdapterHost();  // Stop()
  AdapterHost(const AdapterHost&) = delete;
  AdapterHost& operator=(const AdapterHost&) = delete;

  // The adapter answers requests when `on_end` is called, checked against its base tensor by
  // tensor; with `replace` it takes the place of an adapter of the same name in one step: requests
  // on that one end on it. Throws at once kAlreadyExists for a name that is taken, kNotFound
  // (model_not_found) and kInvalidArgument for the base, and kUnavailable (shutting_down); the
  // rest goes to `on_end`.
  void Load(const AdapterLoadSpec& spec, OnEnd on_end);

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
    OnEnd on_end;
  };

  std::shared_ptr<const ServedModel> FindBase(const std::string& name) const;
  std::shared_ptr<const ServedModel> LoadOne(Task& task);
  void Run();

  ModelRegistry& registry_;
  MemoryLedger& ledger_;
  const Maker maker_;
  std::mutex mutex_;  // guards the next two
  std::deque<Task> queue_;
  bool is_stopped_ = false;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace tandem::server
