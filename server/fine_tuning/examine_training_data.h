#pragma once

#include <functional>

#include "server/fine_tuning/fine_tuning_spec.h"

namespace tandem::training {
struct TrainSpec;
}

namespace tandem::server {

// Checks every row of data.train as the run of this spec will: renders, tokenises and masks it. A
// fault of a row is a finding; a fault of the model's files throws. Any thread may be asked
// `is_cancelled`, before each row; true ends the check with kCancelled.
TrainingData ExamineTrainingData(const training::TrainSpec& spec,
                                 const std::function<bool()>& is_cancelled);

}  // namespace tandem::server
