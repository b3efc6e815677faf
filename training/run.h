#pragma once

#include <cstdint>
#include <filesystem>

#include "engine/base/job_context.h"
#include "training/spec.h"

namespace tandem::training {

struct TrainOutcome {
  enum class Status { kCompleted, kStopped };
  Status status = Status::kCompleted;
  int64_t step = 0;      // steps done
  double loss = 0;       // of the last step
  double eval_loss = 0;  // of the last evaluation; 0 without
  double best_eval_loss = 0;
  std::filesystem::path model_dir;    // exported model; empty when stopped, and of adapters
  std::filesystem::path adapter_dir;  // exported adapter; empty when stopped, and of models
  std::filesystem::path checkpoint;   // newest; empty without
};

// Runs a whole job in this thread: loads or makes the model, resumes from context.dir/checkpoints,
// trains, evaluates, samples, saves, exports to context.dir/hf, or an adapter to
// context.dir/adapter. Writes metrics.jsonl there. Events
// go to context.report: "step" events carry MaxText's log line as their message. When
// context.stop is requested it saves a checkpoint at the next step's end and returns kStopped.
TrainOutcome RunTraining(const TrainSpec& spec, const JobContext& context);

}  // namespace tandem::training
