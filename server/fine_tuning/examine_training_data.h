#pragma once

#include <cstdint>
#include <functional>

#include "server/fine_tuning/fine_tuning_spec.h"

namespace tandem::training {
struct TrainSpec;
}

namespace tandem::server {

// Checks every row of data.train as a run of this spec does: renders, tokenises and masks it. A bad
// row is a finding; a fault of the model's files throws. `is_cancelled` is called before each row
// and within rows, on any thread, with the bytes of text that are rendered or tokenised. True ends
// the check with kCancelled.
TrainingData ExamineTrainingData(const training::TrainSpec& spec,
                                 const std::function<bool(int64_t n_bytes)>& is_cancelled);

}  // namespace tandem::server
