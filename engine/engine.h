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
#include "engine/api/histogram.h"
#include "engine/api/loaded_model.h"
#include "engine/api/options.h"
#include "engine/api/stats.h"
#include "engine/base/error.h"
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

// The version of this program, as in "0.1.0".
std::string_view ProgramVersion();

// Throws what OpenModel throws for the same faults. A given `kv_cache_bytes` is both the least and
// the most KV memory; `memory_bytes` is ignored.
MemoryPlan PlanMemory(const ModelDir& dir, const EngineOptions& options);

// 80 % of the memory available to this process: the smaller of available memory and the rest of the
// cgroup's limit.
int64_t DefaultMemoryBudgetBytes();

// `chat_template_override`: text of a Jinja template to use instead of the model's; empty: none.
// Throws Error naming file and field. Packs weights with `options.threads` threads of its own, in
// the scheduling class of the caller. Calls `progress` on this thread with the finished fraction;
// an exception from it ends the loading.
LoadedModel OpenModel(const ModelDir& dir, const EngineOptions& options,
                      const std::string& chat_template_override,
                      const std::function<void(double fraction)>& progress = {});

// Opens the adapter of a PEFT directory for requests to this model. Throws Error naming file and
// field or tensor.
std::shared_ptr<const Adapter> OpenAdapter(const std::filesystem::path& dir,
                                           const LoadedModel& base, const EngineOptions& options);
// The adapter's memory, from its headers alone. Throws as OpenAdapter, except for faults that only
// the base's weights show.
MemoryClaim PlanAdapterMemory(const std::filesystem::path& dir, const ModelDir& base,
                              const EngineOptions& options);
MemoryClaim PlanAdapterMemory(const std::filesystem::path& dir, const LoadedModel& base);

// Reads the statistics of an engine from any thread. After the engine's end they no longer change.
class EngineFigures {
 public:
  explicit EngineFigures(std::shared_ptr<const LoopStatus> status) : status_(std::move(status)) {}

  EngineStats stats() const;
  EngineHistograms histograms() const;
  // Valid while no other EngineFigures share the status.
  bool has_ended() const { return status_.use_count() == 1; }

 private:
  std::shared_ptr<const LoopStatus> status_;
};

// Serves one model: owns scheduler, KV cache and the engine thread that runs them. Methods are safe
// from any thread. The destructor cancels the remaining requests and joins the thread.
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
  // As Submit, for the prompts of one client, all or none. They count as one request towards a full
  // queue, so a list longer than the queue is not refused forever. `sinks[i]` belongs to
  // `requests[i]`. `max_waiting` > 0 limits the client's waiting requests; beyond:
  // kResourceExhausted (reason rate_limit_exceeded). The time does not depend on the prompts'
  // length. REQUIRES: Check has passed every request.
  std::vector<RequestId> SubmitAll(std::vector<GenerationRequest> requests,
                                   std::vector<EventSink> sinks, int64_t max_waiting = 0);
  // Idempotent; takes effect before the next step. The sink still gets its RequestFinished.
  void Cancel(RequestId request);
  // Ends every running and waiting request with one RequestFinished (kFailed, kUnavailable, this
  // message). Later calls of Submit throw the same. Use it for a model that must unload
  // immediately.
  void EndAll(const std::string& message);
  // A paused request yields its batch place until resumed (a slow reader). Idempotent.
  void SetPaused(RequestId request, bool paused);

  EngineStats stats() const;
  EngineFigures figures() const;
  // True after the model's weights could not be read. All requests then ended with kUnavailable
  // (reason model_damaged), and Submit throws the same.
  bool has_failed() const;
  // Number of requests that Submit would accept now; 0 when the queue is full.
  int64_t queue_room() const;
  // Number of further requests of one client that Submit would accept, if the client may have
  // `max_waiting` waiting.
  int64_t queue_room_of(uint64_t client, int64_t max_waiting) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::engine
