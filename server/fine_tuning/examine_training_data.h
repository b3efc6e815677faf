#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "server/fine_tuning/fine_tuning_spec.h"

namespace tandem::training {
struct TrainSpec;
}

namespace tandem::server {

struct ExamineOptions {
  // Called before each row with 0, and within rows with the bytes of text that are rendered or
  // tokenised, on any thread. True ends the check with kCancelled.
  std::function<bool(int64_t n_bytes)> is_cancelled;
  // Called before each row, and when is_cancelled has ended a row. True ends the check with the
  // findings about the rows before. Empty: all rows.
  std::function<bool()> is_enough = {};
  size_t n_shown = 1;  // number of samples in TrainingData::shown
};

// Checks the rows of data.train as a run of this spec does: renders, tokenises and masks them. A
// bad row, and a file that cannot be read, is a finding; a fault of the model's files throws.
TrainingData ExamineTrainingData(const training::TrainSpec& spec, const ExamineOptions& options);

}  // namespace tandem::server
