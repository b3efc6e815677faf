#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/api/generation.h"
#include "engine/api/loaded_model.h"
#include "engine/api/options.h"
#include "engine/api/stats.h"
#include "engine/base/error.h"
#include "engine/base/histogram.h"
#include "engine/base/ids.h"
#include "engine/base/memory_ledger.h"
#include "engine/sampling/sampling_params.h"

namespace tandem::engine {

class Adapter;
class ChatTemplate;
class LoopStatus;
class Model;
class ModelDir;
class Tokenizer;

// Of this program, as in "0.1.0".
std::string_view ProgramVersion();

// Throws what OpenModel throws for the same faults. `kv_cache_bytes` of the options, where given,
// is both the least and the most; `memory_bytes` plays no part.
MemoryPlan PlanMemory(const ModelDir& dir, const EngineOptions& options);

// 80 % of what this process may use: the smaller of available memory and what the cgroup leaves.
int64_t DefaultMemoryBudgetBytes();

// `chat_template_override`: text of a Jinja template to use instead of the model's; empty: none.
// Throws Error naming file and field. Packs weights with `options.threads` threads of its own, in
// the scheduling class of the caller. `progress` is called on this thread with what part is done;
// what it throws ends the loading.
LoadedModel OpenModel(const ModelDir& dir, const EngineOptions& options,
                      const std::string& chat_template_override,
                      const std::function<void(double fraction)>& progress = {});

// An adapter in a PEFT directory, for requests to this model. Throws Error naming file and field or
// tensor.
std::shared_ptr<const Adapter> OpenAdapter(const std::filesystem::path& dir,
                                           const LoadedModel& base, const EngineOptions& options);
// What that takes, told by the headers alone. Throws as OpenAdapter, but for what only the base's
// weights can tell.
MemoryClaim PlanAdapter(const std::filesystem::path& dir, const ModelDir& base,
                        const EngineOptions& options);
MemoryClaim PlanAdapter(const std::filesystem::path& dir, const LoadedModel& base);

// Reads the figures of an engine from any thread, also after its end: then they stay as they were.
class EngineFigures {
 public:
  explicit EngineFigures(std::shared_ptr<const LoopStatus> status) : status_(std::move(status)) {}

  EngineStats stats() const;
  EngineHistograms histograms() const;
  bool has_ended() const { return status_.use_count() == 1; }  // if nobody else holds figures

 private:
  std::shared_ptr<const LoopStatus> status_;
};

// One model being served: scheduler, KV cache and the engine thread that owns them. Methods are
// safe from any thread. The destructor cancels what is left and joins the thread.
class Engine {
 public:
  Engine(LoadedModel model, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const LoadedModel& loaded() const;

  // Throws kInvalidArgument for an unusable request (empty prompt, id out of range, prompt too
  // long: reason context_length_exceeded). Looks at every token.
  void Check(const GenerationRequest& request) const;
  // Checks and queues the request; `sink` gets its events, ending in one RequestFinished. Throws
  // kUnavailable (reason server_overloaded) when the queue is full.
  RequestId Submit(GenerationRequest request, EventSink sink);
  // The same for the prompts of one client, all or none. They count as one towards a full queue: a
  // list longer than the queue must not be refused forever. `sinks` stands beside `requests`. With
  // `max_waiting` the client may have only so many waiting; beyond: kResourceExhausted (reason
  // rate_limit_exceeded). Quick, however long the prompts. REQUIRES: Check has passed them all.
  std::vector<RequestId> SubmitAll(std::vector<GenerationRequest> requests,
                                   std::vector<EventSink> sinks, int64_t max_waiting = 0);
  // Idempotent; takes effect before the next step. The sink still gets its RequestFinished.
  void Cancel(RequestId request);
  // Ends everything that runs or waits, each request with one RequestFinished (kFailed,
  // kUnavailable, this message), and takes no more: Submit throws the same. For a model that is to
  // go at once.
  void EndAll(const std::string& message);
  // A paused request yields its batch place until resumed (a slow reader). Idempotent.
  void SetPaused(RequestId request, bool paused);

  EngineStats stats() const;
  EngineFigures figures() const;
  // Whether the model's weights could not be read while it ran. Then every request that was there
  // ended with kUnavailable (reason model_damaged), and Submit throws the same.
  bool has_failed() const;
  // How many requests Submit would take now; 0 when the queue is full.
  int64_t queue_room() const;
  // How many more requests of one client there is room for if it may keep `max_waiting` waiting.
  int64_t queue_room_of(uint64_t client, int64_t max_waiting) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::engine
