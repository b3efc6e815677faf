#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace tandem::server {

// The end of a generation request (one prompt), a label of `request_success_total`.
enum class FinishedReason { kStop, kLength, kToolCalls, kAbort, kError };

// The server's metrics for Prometheus. Engine counters are read at each scrape; all others are
// counted here. Thread-safe.
class Metrics {
 public:
  // `prefix` is the part of metric names before the colon.
  explicit Metrics(std::string prefix);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Counts one answered HTTP request. `method` may be any bytes; `route` is a pattern, or empty.
  void CountHttp(std::string_view method, std::string_view route, int status);

  // The counters of one model. Keep the pointer: counting is then one atomic addition.
  class RequestEnds;
  std::shared_ptr<RequestEnds> EndsOf(const std::string& model_name);
  static void Count(RequestEnds& ends, FinishedReason reason);

  struct Model {
    std::string name;
    engine::EngineFigures figures;
    bool prefix_cache = false;
    std::string kv_dtype;
  };
  // Call before the model's first request. The engine is read until it has ended, even if it is not
  // served. One name can have several engines, in sequence or at the same time.
  void Track(Model model);

  // What one API key has used since the server started, or several keys together.
  struct KeyUse {
    std::string id;
    std::string name;
    int64_t requests = 0;
    int64_t prompt_tokens = 0;
    int64_t generation_tokens = 0;
  };

  // Values that other rooms supply at each scrape.
  struct Snapshot {
    std::chrono::steady_clock::time_point now{};
    std::set<std::string> served;  // ids of all serving models and adapters
    // Ids that the reader may see; all others appear as one model, kOtherModels, whose counters
    // never fall. Unset: all ids.
    std::optional<std::set<std::string>> visible;
    std::vector<MemoryLedger::Entry> memory;  // all models, including those being loaded or
                                              // unloaded
    int64_t memory_budget_bytes = 0;
    size_t http_connections = 0;
    std::optional<double> finetune_loss;  // of the last reported step
    std::optional<double> finetune_tokens_per_second;
    int64_t finetune_steps = 0;                                   // reported since the server
                                                                  // started
    std::map<std::pair<std::string, std::string>, int64_t> jobs;  // by type and status
    std::vector<KeyUse> keys;
    bool is_ready = false;                                 // result of GET /ready
    bool is_healthy = false;                               // result of GET /health
    std::optional<std::filesystem::space_info> data_disk;  // unset: no data directory
  };
  static constexpr std::string_view kOtherModels = "other";
  // Time that a model's series outlive it, so that every scraper reads their last values.
  static constexpr std::chrono::minutes kKeepDeparted{5};

  // Prometheus text exposition format, version 0.0.4.
  std::string Text(const Snapshot& snapshot);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::server
