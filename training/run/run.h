#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "engine/base/job_context.h"
#include "engine/tools/merge_adapter.h"
#include "training/spec/spec.h"

namespace tandem::training {

struct TrainOutcome {
  enum class Status { kCompleted, kStopped };
  Status status = Status::kCompleted;
  int64_t step = 0;      // steps done
  double loss = 0;       // of the last step
  double eval_loss = 0;  // of the last evaluation; 0 without
  double best_eval_loss = 0;
  // Exported model; empty when stopped, and of adapters that were not merged.
  std::filesystem::path model_dir;
  std::filesystem::path adapter_dir;  // exported adapter; empty when stopped, and of models
  std::filesystem::path checkpoint;   // newest; empty without
  std::optional<engine::MergeReport> merged;
};

// Runs a whole job in this thread: loads or makes the model, resumes from context.dir/checkpoints,
// trains, evaluates, samples, saves, exports to context.dir/hf, or an adapter to
// context.dir/adapter (with lora.export: merged to both). Writes metrics.jsonl there. Events
// go to context.report: "step" events carry MaxText's log line as their message. When
// context.stop is requested it saves a checkpoint at the next step's end and returns kStopped.
TrainOutcome RunTraining(const TrainSpec& spec, const JobContext& context);

}  // namespace tandem::training
