#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "training/checkpoint/checkpoint_store.h"
#include "training/setup/run_parts.h"

namespace tandem::training {

// Progress of a run that a checkpoint stores in addition to weights and optimiser.
struct RunProgress {
  int64_t step = 0;  // steps done
  double tokens_seen = 0;
  std::deque<double> losses;  // of the last steps
  double best_eval_loss = 0;
  int64_t best_step = -1;
  int64_t exported_best_step = -1;  // the step whose weights best/ holds; -1: none of this run
  int64_t evaluations_without_gain = 0;
  int64_t rollbacks = 0;
};

using WarnFunction = std::function<void(const std::string&)>;

// The parts of a checkpoint beside its tensors.
CheckpointContents TextsOf(const RunParts& parts, const RunProgress& progress);
// The run's present state. The tensors borrow `bytes` and the parameters.
// `moments`: those that ranks share (GatherMoments), which the contents borrow.
CheckpointContents ContentsOf(const RunParts& parts, const RunProgress& progress,
                              const std::vector<engine::NamedTensor>& moments,
                              std::vector<std::vector<std::byte>>* bytes);

// Restores weights, optimiser and data position from the checkpoint. Throws when it belongs to
// another run; warns about permitted differences. The first rank reads; all ranks call this and get
// the same state.
RunProgress RestoreRun(RunParts& parts, const FoundCheckpoint& found, const WarnFunction& warn);

}  // namespace tandem::training
