#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "training/observe/metrics.h"
#include "training/setup/run_parts.h"

namespace tandem::training {

// MaxText's count of the FLOPs of one step, in TFLOP; of adapters what the program counts.
double StepTflop(const RunParts& parts);

// Positions of a step, padding included: what MaxText counts as tokens.
double TokensPerStep(const TrainSpec& spec);

struct StepTimes {
  double seconds = 0;       // of the whole step
  double data_seconds = 0;  // of these, waiting for data
};

// Turns what happens in a run into rows of metrics, with the figures that need more than one step.
class RunMetrics {
 public:
  // Opens what the spec asks for in the run's directory; the run goes on after `first_step` steps.
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
  // `seconds`: for which training stood still.
  void Checkpoint(int64_t steps_done, double seconds);
  void Flush();
  // What has been written is safe from a power loss. Throws kIo.
  void Sync() const;

 private:
  void Write(MetricsRow::Kind kind, int64_t step, std::vector<Scalar> scalars);
  double Goodput() const;

  const RunParts& parts_;
  const std::filesystem::path dir_;
  const double tflop_per_step_;
  const double recomputed_tflop_;  // of rematerialisation, no part of tflop_per_step_
  const double tokens_per_step_;
  const double roof_tflops_;
  double started_unix_ = 0;
  double productive_seconds_ = 0;
  std::vector<std::unique_ptr<MetricsSink>> sinks_;
};

}  // namespace tandem::training
