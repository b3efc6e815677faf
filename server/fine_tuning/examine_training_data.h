#pragma once

#include <functional>

#include "server/fine_tuning/fine_tuning_spec.h"

namespace tandem::training {
struct TrainSpec;
}

namespace tandem::server {

// Checks every row of data.train as a run of this spec does: renders, tokenises and masks it. A bad
// row is a finding; a fault of the model's files throws. `is_cancelled` is called before each row,
// on any thread; true ends the check with kCancelled.
TrainingData ExamineTrainingData(const training::TrainSpec& spec,
                                 const std::function<bool()>& is_cancelled);

}  // namespace tandem::server
