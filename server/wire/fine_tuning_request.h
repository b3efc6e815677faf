#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::server {

// Trains an adapter instead of the model's own weights.
struct FineTuningLora {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  std::vector<std::string> target_modules;  // "q", …, "down"; empty: every linear layer
  bool use_dora = false;
  std::vector<std::string> modules_to_save = {};  // whole trained copies, such as "lm_head"
};

// Texts that the model writes during a run.
struct FineTuningSamples {
  int64_t every = 0;                 // steps
  std::vector<std::string> prompts;  // messages of a user
  int64_t max_tokens = 64;
};

// Absent values ("auto") depend on the size of the data.
struct FineTuningHyperparameters {
  std::optional<int64_t> n_epochs;
  std::optional<int64_t> batch_size;
  std::optional<double> learning_rate_multiplier;
  std::optional<double> beta;  // dpo only
  // Extensions of OpenAI's API.
  std::optional<int64_t> max_steps;
  std::optional<int64_t> seq_len;
  std::optional<FineTuningLora> lora = FineTuningLora();  // absent: trains all weights
  std::string over_length = "truncate_left";              // a value of the training spec's
                                                          // data.overflow
  std::optional<double> warmup_ratio;
  std::optional<double> weight_decay;
  std::optional<double> grad_clip;
  std::string schedule = "linear";
  std::optional<int64_t> checkpoint_every;
  std::optional<std::string> format;  // a value of the training spec's data.format; absent: by the
                                      // file's container
  std::optional<FineTuningSamples> samples;
};

enum class FineTuningMethod { kSupervised, kDpo };
std::string_view NameOf(FineTuningMethod method);

// POST /v1/fine_tuning/jobs, with the checks that need only the body.
struct FineTuningRequest {
  std::string model;
  std::string training_file;
  std::optional<std::string> validation_file;
  FineTuningMethod method = FineTuningMethod::kSupervised;
  FineTuningHyperparameters hyperparameters;
  std::optional<std::string> suffix;
  std::optional<int64_t> seed;
  std::vector<std::pair<std::string, std::string>> metadata;
  bool dry_run = false;
  std::vector<std::string> ignored_params;
};

// Throws kInvalidArgument or kUnsupported, naming the field.
FineTuningRequest ParseFineTuningRequest(const nlohmann::ordered_json& body);

}  // namespace tandem::server
