#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "training/observe/metrics.h"
#include "training/setup/run_parts.h"

namespace tandem::training {

// MaxText's count of the FLOPs of one step, in TFLOP; for adapters the program's count.
double StepTflop(const RunParts& parts);

// Positions of a step, padding included: MaxText's count of tokens.
double TokensPerStep(const TrainSpec& spec);

struct StepTimes {
  double seconds = 0;       // of the whole step
  double data_seconds = 0;  // part of it spent waiting for data
};

// Turns the events of a run into rows of metrics. Computes the figures that need several steps.
class RunMetrics {
 public:
  // Opens the outputs that the spec asks for in the run's directory, after `first_step` steps.
  RunMetrics(RunParts& parts, const std::filesystem::path& dir, int64_t first_step);

  static std::string EvalLine(int64_t steps_done, const EvaluationResult& result,
                              double bits_per_byte);
  // MaxText's log line.
  std::string LogLine(int64_t step, const StepResult& result, const StepTimes& times) const;
  void Step(int64_t step, const StepResult& result, const StepTimes& times);
  // A step whose loss or gradient was not finite.
  void LeftOut(int64_t step, const StepResult& result, const StepTimes& times);
  void Evaluation(int64_t steps_done, const EvaluationResult& result, double bits_per_byte,
                  double seconds);
  // `seconds`: how long training waited.
  void Checkpoint(int64_t steps_done, double seconds);
  void Flush();
  // Makes the written rows safe from a power loss. Throws kIo.
  void Sync() const;

 private:
  void Write(MetricsRow::Kind kind, int64_t step, std::vector<Scalar> scalars);
  double Goodput() const;

  const RunParts& parts_;
  const std::filesystem::path dir_;
  const double tflop_per_step_;
  const double recomputed_tflop_;  // of rematerialisation, not part of tflop_per_step_
  const double tokens_per_step_;
  const double roof_tflops_;
  double started_unix_ = 0;
  double productive_seconds_ = 0;
  std::vector<std::unique_ptr<MetricsSink>> sinks_;
};

}  // namespace tandem::training
