#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/ids.h"
#include "server/wire/fine_tuning_request.h"

namespace tandem::server {

// Findings of a check of every row of a training file.
struct TrainingData {
  int64_t examples = 0;  // rows, good or bad
  int64_t samples = 0;   // samples that a run trains on
  int64_t bad = 0;       // bad rows
  // The first bad rows: line number from 1 (0: no line), and the reason.
  std::vector<std::pair<int64_t, std::string>> errors;
  int64_t tokens = 0;
  int64_t longest = 0;              // tokens; 0: unknown
  std::vector<int32_t> lengths;     // tokens per sample
  std::vector<TokenId> sample_ids;  // the first sample
  std::vector<bool> sample_loss;    // per id of sample_ids: whether it is learned
};

// Paths of the files of a request.
struct TrainingFiles {
  std::filesystem::path training;
  std::filesystem::path validation;  // empty: none
};

// The base of a job.
struct TrainingBase {
  std::string id;            // id of the served model
  std::string path;          // files of the model
  std::string adapter_path;  // adapter to continue from; empty: none
  int64_t max_model_len = 0;
};

// A request with all its choices made.
struct FineTuningPlan {
  FineTuningRequest request;  // every "auto" replaced, and with a seed
  int64_t steps = 0;
  int64_t steps_per_epoch = 0;  // rounded up: the last step may reach into the next epoch
  int64_t row_tokens = 0;       // length of a row
};

// Replaces every "auto" of the request by a value that suits the data. Throws kInvalidArgument if
// the model cannot do what the request asks.
FineTuningPlan PlanFineTuning(FineTuningRequest request, const TrainingBase& base,
                              const TrainingData& data, int64_t random_seed);

// The spec that `tandem train` runs (training/README.md).
nlohmann::ordered_json TrainSpecOf(const FineTuningPlan& plan, const TrainingBase& base,
                                   const TrainingFiles& files);

// The hyperparameters of the API's job object, OpenAI's first.
nlohmann::ordered_json HyperparametersJson(const FineTuningRequest& request);

}  // namespace tandem::server
