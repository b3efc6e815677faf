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

// What became of a generation request (one prompt), as `request_success_total` names it.
enum class FinishedReason { kStop, kLength, kToolCalls, kAbort, kError };

// The server's figures as Prometheus reads them (CONTRACT §15). What the engine counts is read when
// somebody asks; the rest is counted here. Thread-safe.
class Metrics {
 public:
  // `prefix` is the part of names before the colon.
  explicit Metrics(std::string prefix);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // One answered HTTP request. `method` may be any bytes; `route` is a pattern, or empty.
  void CountHttp(std::string_view method, std::string_view route, int status);

  // The counters of one model. Keep it: counting is then one atomic addition.
  class RequestEnds;
  std::shared_ptr<RequestEnds> EndsOf(const std::string& model_name);
  static void Count(RequestEnds& ends, FinishedReason reason);

  struct Model {
    std::string name;
    engine::EngineFigures figures;
    bool prefix_cache = false;
    std::string kv_dtype;
  };
  // To be called before the model's first request: its engine is watched until that has ended,
  // served or not. A name may have several engines, one after the other or at once.
  void Track(Model model);

  // What only others know.
  struct Snapshot {
    std::chrono::steady_clock::time_point now{};
    std::set<std::string> served;  // ids of all models and adapters that answer
    // Ids that the reader may see; all others are shown as one model, kOtherModels. Unset: all.
    std::optional<std::set<std::string>> visible;
    std::vector<MemoryLedger::Entry> memory;  // of all models, those that come and go too
    int64_t memory_budget_bytes = 0;
    size_t http_connections = 0;
    std::optional<double> finetune_loss;  // of the step reported last
    std::optional<double> finetune_tokens_per_second;
    int64_t finetune_steps = 0;                                   // reported since the server began
    std::map<std::pair<std::string, std::string>, int64_t> jobs;  // by type and status
    bool is_ready = false;                                        // what GET /ready says
    bool is_healthy = false;                                      // what GET /health says
    std::optional<std::filesystem::space_info> data_disk;         // unset: no data directory
  };
  static constexpr std::string_view kOtherModels = "other";
  // How long the series of a model outlive it, so that every scraper reads their last values.
  static constexpr std::chrono::minutes kKeepDeparted{5};

  // The exposition text, version 0.0.4.
  std::string Text(const Snapshot& snapshot);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::server
