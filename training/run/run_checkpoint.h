#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "training/checkpoint/checkpoint_store.h"
#include "training/setup/run_parts.h"

namespace tandem::training {

// How far a run is, beside weights and optimiser: what a checkpoint remembers of it.
struct RunProgress {
  int64_t step = 0;  // steps done
  double tokens_seen = 0;
  std::deque<double> losses;  // of the last steps
  double best_eval_loss = 0;
  int64_t best_step = -1;
  int64_t exported_best_step = -1;  // whose weights best/ holds; -1: none of this run's
  int64_t evaluations_without_gain = 0;
  int64_t rollbacks = 0;
};

using WarnFunction = std::function<void(const std::string&)>;

// The run as it stands. The tensors borrow `bytes` and the parameters.
CheckpointContents ContentsOf(const RunParts& parts, const RunProgress& progress,
                              std::vector<std::vector<std::byte>>* bytes);

// Puts weights, optimiser and data where the checkpoint has them. Throws when it is of another run
// than this; what may differ is warned about.
RunProgress RestoreRun(RunParts& parts, const FoundCheckpoint& found, const WarnFunction& warn);

}  // namespace tandem::training
