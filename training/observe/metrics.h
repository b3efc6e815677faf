#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::training {

// Every scalar of a run: MaxText's names, then ours; for preferences TRL's. metrics.csv has these
// columns in this order. Every row of a step has the first scalar, and no other row has it.
inline constexpr std::array kMetricNames = {
    "learning/total_weights",
    "learning/loss",
    "learning/perplexity",
    "learning/accuracy",
    "distill/soft_loss",
    "distill/hard_loss",
    "learning/moe_lb_loss",
    "learning/router_z_loss",
    "learning/most_loaded_expert",
    "learning/grad_norm",
    "learning/raw_grad_norm",
    "learning/current_learning_rate",
    "learning/updated",
    "learning/finite",
    "learning/skipped",
    "perf/step_time_seconds",
    "perf/data_wait_seconds",
    "perf/per_device_tflops",
    "perf/per_device_tflops_per_sec",
    "perf/hardware_tflops",
    "perf/per_device_tokens",
    "perf/per_device_tokens_per_sec",
    "perf/real_tokens_per_sec",
    "perf/mfu",
    "perf/goodput",
    "data/epoch",
    "eval/avg_loss",
    "eval/avg_perplexity",
    "eval/accuracy",
    "eval/bits_per_byte",
    "eval/distill/soft_loss",
    "eval/distill/hard_loss",
    "eval/total_weights",
    "eval/seconds",
    "rewards/chosen",
    "rewards/rejected",
    "rewards/accuracies",
    "rewards/margins",
    "logps/chosen",
    "logps/rejected",
    "eval/rewards/chosen",
    "eval/rewards/rejected",
    "eval/rewards/accuracies",
    "eval/rewards/margins",
    "eval/logps/chosen",
    "eval/logps/rejected",
    "checkpoint/seconds",
};

// A loss may be NaN or infinite. Sinks then write null, an empty cell or nothing.
struct Scalar {
  const char* name = nullptr;  // one of kMetricNames
  double value = 0;
};

struct MetricsRow {
  // A step's row has its number, from 0. A row between steps (evaluation, checkpoint) has the
  // number of finished steps.
  enum class Kind { kStep, kBetweenSteps };
  Kind kind = Kind::kStep;
  int64_t step = 0;
  double unix_seconds = 0;
  std::vector<Scalar> scalars;
};

// Whether a run resumed after `first_step` steps will write this row again.
inline bool IsRedone(MetricsRow::Kind kind, int64_t step, int64_t first_step) {
  return kind == MetricsRow::Kind::kStep ? step >= first_step : step > first_step;
}

// One output format of metrics. Write hands each row to the system, so that a killed process loses
// none. Write failures are ignored: after a full disk rows continue once space returns.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void Write(const MetricsRow& row) = 0;
  // Called at evaluations and at the end, for output that is not written row by row.
  virtual void Flush() {}
};

// `first_step`: number of finished steps of a resumed run. The sinks drop earlier rows that the run
// will write again. JSON lines only grow; README.md has the rule for readers. All throw kIo when a
// file cannot be read or created.
std::unique_ptr<MetricsSink> MakeJsonLines(const std::filesystem::path& path);
std::unique_ptr<MetricsSink> MakeCsv(const std::filesystem::path& path, int64_t first_step);
std::unique_ptr<MetricsSink> MakeTensorBoard(const std::filesystem::path& dir, int64_t first_step);
// What W&B shows of a run; the values of `config` are JSON.
struct WandbDescription {
  std::string project;
  std::string name;
  std::vector<std::pair<std::string, std::string>> config;
};
// Writes wandb/offline-run-…/run-ID.wandb below `dir`, for `wandb sync`.
std::unique_ptr<MetricsSink> MakeWandb(const std::filesystem::path& dir, int64_t first_step,
                                       const WandbDescription& description);
// `history`: the run's metrics.jsonl; the plot begins with its losses.
std::unique_ptr<MetricsSink> MakeLossPlot(const std::filesystem::path& path,
                                          const std::filesystem::path& history, int64_t first_step);

}  // namespace tandem::training
