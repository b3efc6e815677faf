#pragma once

#include <optional>
#include <string>

#include "server/fine_tuning/fine_tuning_spec.h"
#include "server/handlers/handlers.h"
#include "server/wire/fine_tuning_request.h"

namespace tandem::server {

// A fine-tuning job before it is submitted: every choice made, every file checked.
struct JobDraft {
  FineTuningPlan plan;
  TrainingData data;          // findings about the training file
  std::string spec;           // what the job's process runs
  bool is_unchecked = false;  // whether the job still has to check a file
};

// Throws what refuses the job: an unknown or invalid file, bad lines (invalid_training_file), and
// hyperparameters that the model or the data cannot follow.
JobDraft DraftJob(const HandlerContext& context, FineTuningRequest wanted, const TrainingBase& base,
                  const Request& request, const ResponseWriter& writer);

}  // namespace tandem::server
