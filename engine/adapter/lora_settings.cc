#include "engine/adapter/lora_settings.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "engine/adapter/lora_adapter.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMaxAlpha = 1e6;

// Fields that do not change a forward pass without dropout, or that select modules; the tensors
// already tell which modules have an adapter.
constexpr std::array kHarmless = {
    "auto_mapping",      "base_model_name_or_path",
    "corda_config",      "eva_config",
    "exclude_modules",   "inference_mode",
    "layers_pattern",    "layers_to_transform",
    "loftq_config",      "lora_dropout",
    "lora_ga_config",    "megatron_config",
    "megatron_core",     "peft_version",
    "qalora_group_size", "revision",
    "task_type",         "runtime_config",
    "fan_in_fan_out",    "loraplus_lr_ratio",
};
// Fields that the code below reads.
constexpr std::array kRead = {
    "peft_type",      "r",        "lora_alpha",      "rank_pattern",
    "alpha_pattern",  "bias",     "use_rslora",      "init_lora_weights",
    "target_modules", "use_dora", "modules_to_save", "ensure_weight_tying",
};

template <class Names>
bool Holds(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "pissa" and similar methods subtract the initial A and B from the base's weights. The adapter
// then belongs to another base than the one on disk.
void CheckInit(const Json& config, const std::string& source) {
  const auto found = config.find("init_lora_weights");
  if (found == config.end() || found->is_null() || found->is_boolean()) return;
  const std::string init = JsonStringOr(config, "init_lora_weights", "", source);
  if (init == "gaussian" || init == "eva" || init == "orthogonal") return;
  RefuseAdapter(source, "field 'init_lora_weights' is " + Quoted(init) +
                            ", which changes the base model's weights; save the adapter as a "
                            "plain LoRA");
}

// The items of a list of strings; empty when the field is absent or null.
std::vector<std::string> Strings(const Json& config, const char* field, const std::string& source) {
  std::vector<std::string> items;
  const auto found = config.find(field);
  if (found == config.end() || found->is_null()) return items;
  if (!found->is_array()) {
    FailBrokenAdapter(source, "field '" + std::string(field) + "' must be an array");
  }
  for (const Json& item : *found) {
    if (!item.is_string()) {
      FailBrokenAdapter(source,
                        "every item of field '" + std::string(field) + "' must be a string");
    }
    items.push_back(item.get<std::string>());
  }
  return items;
}

}  // namespace

void RefuseAdapter(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, source + ": " + what);
}

void FailBrokenAdapter(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kDataLoss, source + ": " + what);
}

bool IsUnset(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         ((value.is_array() || value.is_object() || value.is_string()) && value.empty());
}

LoraPattern::LoraPattern(const Json& config, const char* field, Numbers numbers, double max,
                         const std::string& source) {
  const auto found = config.find(field);
  if (found == config.end() || found->is_null()) return;
  if (!found->is_object()) {
    FailBrokenAdapter(source, "field '" + std::string(field) + "' must be an object");
  }
  for (const auto& [key, value] : found->items()) {
    const std::string what = "field " + Quoted(std::string(field) + "." + key) + " ";
    // PEFT reads keys as regular expressions that match the end of a path; in practice they are
    // plain paths.
    const std::string plain = key.starts_with("^") ? key.substr(1) : key;
    const bool is_path = std::all_of(plain.begin(), plain.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
    });
    if (plain.empty() || !is_path) {
      RefuseAdapter(source,
                    what + "is a regular expression; only plain module names are supported");
    }
    const double number = value.is_number() ? value.get<double>() : 0;
    const bool fits = numbers == Numbers::kReals || number == std::floor(number);
    if (!fits || !(number > 0) || number > max) {
      FailBrokenAdapter(
          source, what + "must be " + (numbers == Numbers::kReals ? "a number" : "an integer") +
                      " above 0 and at most " + std::to_string(static_cast<int64_t>(max)));
    }
    (key.starts_with("^") ? whole_ : ends_)
        .try_emplace(plain, Entry{whole_.size() + ends_.size(), number});
  }
}

double LoraPattern::Of(const std::string& path, double otherwise) const {
  Entry first{SIZE_MAX, otherwise};
  const auto take = [&](const Entries& entries, std::string_view name) {
    const auto found = entries.find(name);
    if (found != entries.end() && found->second.place < first.place) first = found->second;
  };
  take(whole_, path);
  for (const std::string_view end : PathEnds(path)) take(ends_, end);
  return first.value;
}

LoraSettings ReadLoraSettings(const Json& config, const std::string& source) {
  if (!config.is_object()) FailBrokenAdapter(source, "must be a JSON object");
  const std::string type = JsonStringOr(config, "peft_type", "LORA", source);
  if (type != "LORA") {
    RefuseAdapter(source, "field 'peft_type' is " + Quoted(type) + "; only 'LORA' is supported");
  }
  const std::string bias = JsonStringOr(config, "bias", "none", source);
  if (bias != "none") {
    RefuseAdapter(source, "field 'bias' is " + Quoted(bias) +
                              "; trained biases are not supported, only 'none'");
  }
  CheckInit(config, source);
  for (const auto& [field, value] : config.items()) {
    if (Holds(kHarmless, field) || Holds(kRead, field) || IsUnset(value)) continue;
    RefuseAdapter(source, "field " + Quoted(field) + " is set, but it is not supported");
  }
  using Numbers = LoraPattern::Numbers;
  std::vector<std::string> saved = Strings(config, "modules_to_save", source);
  NameEnds saved_ends(saved);
  LoraSettings settings{
      .rank = JsonIntOr(config, "r", 8, 1, LoraAdapter::kMaxRank, source),
      .alpha = JsonNumberOr(config, "lora_alpha", 8, 0, kMaxAlpha, source),
      .rank_stabilized = JsonBoolOr(config, "use_rslora", false, source),
      .is_dora = JsonBoolOr(config, "use_dora", false, source),
      .ties_weights = JsonBoolOr(config, "ensure_weight_tying", false, source),
      .ranks = {config, "rank_pattern", Numbers::kIntegers, LoraAdapter::kMaxRank, source},
      .alphas = {config, "alpha_pattern", Numbers::kReals, kMaxAlpha, source},
      .targets = {},
      .saved_modules = std::move(saved),
      .saved_ends = std::move(saved_ends)};
  const auto targets = config.find("target_modules");
  if (targets == config.end() || targets->is_null() || targets->is_string()) return settings;
  settings.targets.emplace();
  if (!targets->is_array()) {
    FailBrokenAdapter(source, "field 'target_modules' must be an array or a string");
  }
  for (std::string& target : Strings(config, "target_modules", source)) {
    settings.targets->insert(std::move(target));
  }
  return settings;
}

}  // namespace tandem::engine
