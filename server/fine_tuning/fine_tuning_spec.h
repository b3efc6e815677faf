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

// A sample as a run trains on it. A pair is two sequences.
struct TrainingExample {
  std::vector<TokenId> ids;
  std::vector<bool> loss;  // per id: whether it is learned
  size_t second = 0;       // begin of a pair's second sequence; 0: no pair
};

// Findings of a check of the rows of a training file.
struct TrainingData {
  int64_t examples = 0;  // rows, good or bad
  int64_t checked = 0;   // rows that were checked, from the first
  int64_t samples = 0;   // samples that a run trains on
  int64_t bad = 0;       // bad rows
  // The first bad rows: line number from 1 (0: no line), and the reason.
  std::vector<std::pair<int64_t, std::string>> errors;
  int64_t tokens = 0;
  int64_t longest = 0;  // tokens; 0: unknown
  int64_t trained_tokens = 0;
  int64_t duplicates = 0;
  int64_t over_length = 0;             // samples longer than a row
  int64_t split_rows = 0;              // rows that became one sample per answer
  std::string format;                  // of the rows; empty: unknown
  std::vector<int32_t> lengths;        // tokens per sample
  std::vector<TrainingExample> shown;  // the first samples
};

// Paths of the files of a request.
struct TrainingFiles {
  std::filesystem::path training;
  std::filesystem::path validation;  // empty: none
  // Values of the training spec's data.container.
  std::string training_container = "json";
  std::string validation_container = "json";
};

// The base of a job.
struct TrainingBase {
  std::string id;            // id of the served model
  std::string path;          // files of the model
  std::string adapter_path;  // adapter to continue from; empty: none
  int64_t max_model_len = 0;
  bool has_chat_template = false;
};

// A request with all its choices made.
struct FineTuningPlan {
  FineTuningRequest request;  // every "auto" replaced, and with a seed
  int64_t steps = 0;
  int64_t steps_per_epoch = 0;  // rounded up: the last step may reach into the next epoch
  int64_t row_tokens = 0;       // length of a row
  std::vector<std::string> sample_prompts = {};  // rendered prompts of the request's samples
};

// Replaces every "auto" of the request by a value that suits the data. Throws kInvalidArgument if
// the model cannot do what the request asks.
FineTuningPlan PlanFineTuning(FineTuningRequest request, const TrainingBase& base,
                              const TrainingData& data, int64_t random_seed);

// The spec that `tandem train` runs (training/README.md).
nlohmann::ordered_json TrainSpecOf(const FineTuningPlan& plan, const TrainingBase& base,
                                   const TrainingFiles& files);

// The data.container of an upload: "csv" and "parquet" by the extension of its name, else "json".
std::string ContainerOfUpload(const std::string& filename);

// The highest learning rate of the run.
double LearningRateOf(const FineTuningPlan& plan);

// The hyperparameters of the API's job object, OpenAI's first.
nlohmann::ordered_json HyperparametersJson(const FineTuningRequest& request);

}  // namespace tandem::server
