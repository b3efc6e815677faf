#pragma once

#include "server/handlers/fine_tuning_spec.h"

namespace tandem::training {
struct TrainSpec;
}

namespace tandem::server {

// Looks at every row of data.train as the run of this spec will: renders it, tokenises it, masks
// it. What is wrong with rows is a finding; what is wrong with the model's files throws.
TrainingData ExamineTrainingData(const training::TrainSpec& spec);

}  // namespace tandem::server
