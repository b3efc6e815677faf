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

// What a look at every row of a training file has found.
struct TrainingData {
  int64_t examples = 0;  // rows, good or bad
  int64_t samples = 0;   // that a run trains on
  int64_t bad = 0;
  // The first bad ones: the number of the line, from 1 (0: of none), and why.
  std::vector<std::pair<int64_t, std::string>> errors;
  int64_t tokens = 0;
  int64_t longest = 0;              // in tokens; 0: not known
  std::vector<int32_t> lengths;     // of every sample
  std::vector<TokenId> sample_ids;  // the first one, and which of its tokens are learned
  std::vector<bool> sample_loss;
};

// The files of a request, as the job's process reads them.
struct TrainingFiles {
  std::filesystem::path training;
  std::filesystem::path validation;  // empty: none
};

// What the base of a job is.
struct TrainingBase {
  std::string id;            // as served
  std::string path;          // of the model
  std::string adapter_path;  // of the adapter to go on from; empty: none
  int64_t max_model_len = 0;
};

// A request with nothing left open.
struct FineTuningPlan {
  FineTuningRequest request;  // every "auto" replaced, and with a seed
  int64_t steps = 0;
  int64_t steps_per_epoch = 0;  // the last of them may reach into the next one
  int64_t row_tokens = 0;
};

// Chooses what the request leaves open, by the size of the data. Throws kInvalidArgument for what
// the model cannot do.
FineTuningPlan PlanFineTuning(FineTuningRequest request, const TrainingBase& base,
                              const TrainingData& data, int64_t random_seed);

// The spec that `tandem train` runs (training/README.md).
nlohmann::ordered_json TrainSpecOf(const FineTuningPlan& plan, const TrainingBase& base,
                                   const TrainingFiles& files);

// As the API shows hyperparameters, standard ones first.
nlohmann::ordered_json HyperparametersJson(const FineTuningRequest& request);

}  // namespace tandem::server
