#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "engine/base/job_context.h"
#include "engine/tools/merge_adapter.h"
#include "training/dist/collectives.h"
#include "training/spec/spec.h"

namespace tandem::training {

struct TrainOutcome {
  enum class Status { kCompleted, kStopped };
  Status status = Status::kCompleted;
  int64_t step = 0;      // steps done
  double loss = 0;       // of the last step
  double eval_loss = 0;  // of the last evaluation; 0 if none
  double best_eval_loss = 0;
  // Exported model; empty when stopped, and for an adapter that was not merged.
  std::filesystem::path model_dir;
  std::filesystem::path adapter_dir;  // exported adapter; empty when stopped, and for models
  std::filesystem::path checkpoint;   // newest; empty if none
  std::optional<engine::MergeReport> merged;
};

// Runs a whole job in this thread. Loads or creates the model, resumes from
// context.dir/checkpoints, trains, evaluates, samples and saves. Writes context.dir/metrics.jsonl.
// Exports to context.dir/hf, an adapter to context.dir/adapter (with lora.export: merged to both).
// Sends events to context.report; the message of a "step" event is MaxText's log line. On a stop
// request it saves a checkpoint at the end of the step and returns kStopped.
//
// With `ranks`, several processes (or threads) run the job together: each calls RunTraining with
// the same spec and directory. Only the first rank writes files and reports. A stop request on any
// rank stops all. Throws on every rank when the ranks differ in program, spec, data or instruction
// set.
TrainOutcome RunTraining(const TrainSpec& spec, const JobContext& context,
                         Collectives* ranks = nullptr);

}  // namespace tandem::training
