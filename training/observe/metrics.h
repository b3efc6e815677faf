#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

namespace tandem::training {

// Every scalar of a run: MaxText's names, then ours, of preferences TRL's. Columns of metrics.csv
// in this order; the first is of every step's row and of no other.
inline constexpr std::array kMetricNames = {
    "learning/total_weights",
    "learning/loss",
    "learning/perplexity",
    "learning/accuracy",
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

// A loss may be no finite number; null, an empty cell or nothing then stands for it.
struct Scalar {
  const char* name = nullptr;  // one of kMetricNames
  double value = 0;
};

struct MetricsRow {
  // Of a step: its number, from 0. Of what happens between steps (evaluation, checkpoint): how many
  // steps are done.
  enum class Kind { kStep, kBetweenSteps };
  Kind kind = Kind::kStep;
  int64_t step = 0;
  double unix_seconds = 0;
  std::vector<Scalar> scalars;
};

// Whether a run that goes on after `first_step` steps will write this row once more.
inline bool IsRedone(MetricsRow::Kind kind, int64_t step, int64_t first_step) {
  return kind == MetricsRow::Kind::kStep ? step >= first_step : step > first_step;
}

// One way of writing rows down. A row is on disk when Write returns, as far as the process is
// concerned: a kill loses nothing. Metrics are not worth failing for: after a full disk they go on
// where there is room again.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void Write(const MetricsRow& row) = 0;
  // At evaluations and at the end, for what is not written row by row.
  virtual void Flush() {}
};

// `first_step`: how many steps a resumed run had done; rows of an earlier process that will be
// written once more are dropped, but for JSON lines, which only grow (README.md has the reader's
// rule). Throw kIo where the files cannot be read or made.
std::unique_ptr<MetricsSink> MakeJsonLines(const std::filesystem::path& path);
std::unique_ptr<MetricsSink> MakeCsv(const std::filesystem::path& path, int64_t first_step);
std::unique_ptr<MetricsSink> MakeTensorBoard(const std::filesystem::path& dir, int64_t first_step);
// `history`: metrics.jsonl of the run, whose losses the plot begins with.
std::unique_ptr<MetricsSink> MakeLossPlot(const std::filesystem::path& path,
                                          const std::filesystem::path& history, int64_t first_step);

}  // namespace tandem::training
