#include "server/fine_tuning/fine_tuning_spec.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/wire/field_reader.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLoraLearningRate = 2e-4;
constexpr double kFullLearningRate = 2e-5;
// DPO damages a model quickly at the usual rate: use a tenth.
constexpr double kDpoFactor = 0.1;
constexpr int64_t kMostEpochs = 3;
constexpr int64_t kMostBatch = 8;
constexpr int64_t kUsualRowTokens = 2048;
constexpr int64_t kRowTokensStep = 16;

int64_t DividedUp(int64_t n, int64_t by) { return (n + by - 1) / by; }
int64_t RoundedUp(int64_t n, int64_t step) { return DividedUp(n, step) * step; }

// Three epochs for a small file, one for a file that takes long anyway.
int64_t AutoEpochs(int64_t examples) {
  if (examples <= 3000) return kMostEpochs;
  return examples <= 10000 ? 2 : 1;
}

int64_t AutoBatch(int64_t examples) {
  return std::clamp<int64_t>((examples + 31) / 32, 1, kMostBatch);
}

// A regular expression on the paths of linear layers.
std::string ModulePath(const std::vector<std::string>& modules) {
  static const std::map<std::string, std::string_view> kProjections = {
      {"q", "q_proj"},       {"k", "k_proj"},   {"v", "v_proj"},      {"o", "o_proj"},
      {"gate", "gate_proj"}, {"up", "up_proj"}, {"down", "down_proj"}};
  std::string names;
  for (const std::string& module : modules) {
    names += (names.empty() ? "" : "|") + std::string(kProjections.at(module));
  }
  return "\\.(" + names + ")$";
}

Json LoraJson(const FineTuningLora& lora, const TrainingBase& base) {
  Json out;
  out["enable"] = true;
  if (!base.adapter_path.empty()) {
    out["load_path"] = base.adapter_path;  // the adapter fixes rank, alpha and modules
  } else {
    out["rank"] = lora.rank;
    out["alpha"] = lora.alpha;
    if (!lora.target_modules.empty()) out["module_path"] = ModulePath(lora.target_modules);
    if (lora.use_dora) out["use_dora"] = true;
    if (!lora.modules_to_save.empty()) out["modules_to_save"] = lora.modules_to_save;
  }
  out["dropout"] = lora.dropout;
  return out;
}

// JSON is OpenAI's format unless the request names another. CSV and Parquet have no such default.
std::string FormatOf(const FineTuningRequest& request, const TrainingFiles& files) {
  if (request.hyperparameters.format) return *request.hyperparameters.format;
  const bool is_json = files.training_container == "json" &&
                       (files.validation.empty() || files.validation_container == "json");
  if (!is_json) return "auto";
  return request.method == FineTuningMethod::kDpo ? "openai_preference" : "messages";
}

Json DataJson(const FineTuningPlan& plan, const TrainingBase& base, const TrainingFiles& files) {
  Json out;
  out["train"] = files.training.string();
  if (!files.validation.empty()) out["eval"] = files.validation.string();
  if (files.training_container != "json") out["container"] = files.training_container;
  if (!files.validation.empty() && files.validation_container != "json") {
    out["eval_container"] = files.validation_container;
  }
  const std::string format = FormatOf(plan.request, files);
  out["format"] = format;
  // Prompts become chats: the result answers chats.
  if (base.has_chat_template && format != "messages" && format != "openai_preference") {
    out["apply_template"] = "always";
  }
  out["max_target_length"] = plan.row_tokens;
  // One example per row, so that a batch holds batch_size examples.
  out["packing"] = "none";
  out["overflow"] = plan.request.hyperparameters.over_length;
  out["seed"] = *plan.request.seed;
  out["num_epoch"] = *plan.request.hyperparameters.n_epochs;
  return out;
}

Json TrainJson(const FineTuningPlan& plan) {
  const FineTuningHyperparameters& wanted = plan.request.hyperparameters;
  Json out;
  out["steps"] = plan.steps;
  out["per_device_batch_size"] = *wanted.batch_size;
  out["learning_rate"] = LearningRateOf(plan);
  out["schedule"]["type"] = wanted.schedule;
  if (wanted.warmup_ratio && wanted.schedule != "constant") {
    out["schedule"]["warmup_fraction"] = *wanted.warmup_ratio;
  }
  if (wanted.weight_decay) out["optimizer"]["weight_decay"] = *wanted.weight_decay;
  if (wanted.grad_clip) out["gradient_clipping_threshold"] = *wanted.grad_clip;
  if (wanted.samples && !plan.sample_prompts.empty()) {
    out["sample"]["every"] = wanted.samples->every;
    out["sample"]["prompts"] = plan.sample_prompts;
    out["sample"]["max_tokens"] = wanted.samples->max_tokens;
  }
  return out;
}

// Rows of an epoch: one per example, or one per piece of a long example with "split".
int64_t RowsOf(const TrainingData& data, const std::string& over_length, int64_t row_tokens) {
  if (over_length != "split" || data.lengths.empty()) return data.samples;
  int64_t rows = 0;
  // The last token of an example is only a target and takes no position of a row.
  for (const int32_t tokens : data.lengths) {
    rows += std::max<int64_t>(1, DividedUp(tokens - 1, row_tokens));
  }
  return rows;
}

}  // namespace

FineTuningPlan PlanFineTuning(FineTuningRequest request, const TrainingBase& base,
                              const TrainingData& data, int64_t random_seed) {
  FineTuningPlan plan;
  FineTuningHyperparameters& chosen = request.hyperparameters;
  if (chosen.seq_len.value_or(0) > base.max_model_len) {
    throw BadValue("hyperparameters.seq_len",
                   "hyperparameters.seq_len must be at most the model's context length " +
                       std::to_string(base.max_model_len) + ", got " +
                       std::to_string(*chosen.seq_len));
  }
  if (!base.adapter_path.empty() && !chosen.lora) {
    throw BadValue("hyperparameters.lora",
                   "hyperparameters.lora must not be false: '" + base.id +
                       "' is an adapter, and its training continues as one");
  }
  if (!request.seed) request.seed = random_seed;
  if (!chosen.n_epochs) chosen.n_epochs = AutoEpochs(data.samples);
  if (!chosen.batch_size) chosen.batch_size = AutoBatch(data.samples);
  if (!chosen.learning_rate_multiplier) chosen.learning_rate_multiplier = 1;
  if (request.method == FineTuningMethod::kDpo && !chosen.beta) chosen.beta = 0.1;
  const int64_t longest_allowed =
      chosen.seq_len.value_or(std::min(kUsualRowTokens, base.max_model_len));
  plan.row_tokens = longest_allowed;
  // Rows need no more room than the longest example.
  if (data.longest > 0) {
    plan.row_tokens = std::min(longest_allowed, RoundedUp(data.longest, kRowTokensStep));
  }
  const int64_t rows = RowsOf(data, chosen.over_length, plan.row_tokens);
  plan.steps_per_epoch = std::max<int64_t>(1, DividedUp(rows, *chosen.batch_size));
  plan.steps = std::max<int64_t>(1, DividedUp(rows * *chosen.n_epochs, *chosen.batch_size));
  plan.request = std::move(request);
  if (const auto max_steps = plan.request.hyperparameters.max_steps) {
    plan.steps = std::min(plan.steps, *max_steps);
  }
  return plan;
}

Json TrainSpecOf(const FineTuningPlan& plan, const TrainingBase& base, const TrainingFiles& files) {
  const FineTuningHyperparameters& wanted = plan.request.hyperparameters;
  const bool is_dpo = plan.request.method == FineTuningMethod::kDpo;
  Json spec;
  spec["version"] = 1;
  spec["kind"] = is_dpo ? "train.dpo" : "train.sft";
  spec["model"]["load_parameters_path"] = base.path;
  spec["model"]["init_seed"] = *plan.request.seed;
  if (wanted.lora) spec["lora"] = LoraJson(*wanted.lora, base);
  spec["data"] = DataJson(plan, base, files);
  spec["train"] = TrainJson(plan);
  if (is_dpo) spec["dpo"]["beta"] = *wanted.beta;
  spec["checkpoint"]["period"] = wanted.checkpoint_every.value_or(plan.steps_per_epoch);
  spec["checkpoint"]["keep"] = 1;
  // Exports become the job's checkpoints; each gets an evaluation.
  spec["checkpoint"]["export_epochs"] = true;
  if (wanted.checkpoint_every) spec["checkpoint"]["export_every"] = *wanted.checkpoint_every;
  // The result is the model of the last step, as the API's last checkpoint promises.
  spec["checkpoint"]["export_best"] = false;
  return spec;
}

std::string ContainerOfUpload(const std::string& filename) {
  std::string name = filename;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name.ends_with(".parquet")) return "parquet";
  return name.ends_with(".csv") ? "csv" : "json";
}

double LearningRateOf(const FineTuningPlan& plan) {
  const FineTuningHyperparameters& wanted = plan.request.hyperparameters;
  return (wanted.lora ? kLoraLearningRate : kFullLearningRate) *
         (plan.request.method == FineTuningMethod::kDpo ? kDpoFactor : 1) *
         *wanted.learning_rate_multiplier;
}

Json HyperparametersJson(const FineTuningRequest& request) {
  const FineTuningHyperparameters& chosen = request.hyperparameters;
  const auto number_or_auto = [](const auto& value) { return value ? Json(*value) : Json("auto"); };
  Json out;
  out["n_epochs"] = number_or_auto(chosen.n_epochs);
  out["batch_size"] = number_or_auto(chosen.batch_size);
  out["learning_rate_multiplier"] = number_or_auto(chosen.learning_rate_multiplier);
  if (request.method == FineTuningMethod::kDpo) out["beta"] = number_or_auto(chosen.beta);
  if (chosen.max_steps) out["max_steps"] = *chosen.max_steps;
  if (chosen.seq_len) out["seq_len"] = *chosen.seq_len;
  if (chosen.lora) {
    out["lora"] = Json{{"rank", chosen.lora->rank},
                       {"alpha", chosen.lora->alpha},
                       {"dropout", chosen.lora->dropout}};
    if (!chosen.lora->target_modules.empty()) {
      out["lora"]["target_modules"] = chosen.lora->target_modules;
    }
    if (chosen.lora->use_dora) out["lora"]["use_dora"] = true;
    if (!chosen.lora->modules_to_save.empty()) {
      out["lora"]["modules_to_save"] = chosen.lora->modules_to_save;
    }
  } else {
    out["lora"] = false;
  }
  out["over_length"] = chosen.over_length;
  out["schedule"] = chosen.schedule;
  if (chosen.warmup_ratio) out["warmup_ratio"] = *chosen.warmup_ratio;
  if (chosen.weight_decay) out["weight_decay"] = *chosen.weight_decay;
  if (chosen.grad_clip) out["grad_clip"] = *chosen.grad_clip;
  if (chosen.checkpoint_every) out["checkpoint_every"] = *chosen.checkpoint_every;
  if (chosen.format) out["format"] = *chosen.format;
  if (chosen.samples) {
    out["samples"] = Json{{"every", chosen.samples->every},
                          {"prompts", chosen.samples->prompts},
                          {"max_tokens", chosen.samples->max_tokens}};
  }
  return out;
}

}  // namespace tandem::server
