#include "training/lora/lora.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/edit_distance.h"
#include "engine/io/sha256.h"
#include "engine/model/adapter.h"
#include "engine/sampling/philox.h"
#include "training/lora/module_names.h"
#include "training/name_pattern.h"

namespace tandem::training {
namespace {

// GPT-2's "Conv1D": transformers names its kernel like a linear layer's weight and stores it [in,
// out].
bool IsConv(const engine::WeightSpec& spec) {
  return spec.layout == engine::SourceLayout::kInOut && spec.name.ends_with(".weight");
}

// lora.module_path against every name of a module.
class Matcher {
 public:
  Matcher(const LoraOptions& options, std::string_view family)
      : options_(options), family_(family), pattern_("lora.module_path", options.module_path) {}

  bool Matches(const std::string& path) const {
    if (options_.module_path.empty()) return true;
    const std::vector<std::string> names = NamesOfModule(family_, path);
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return options_.full_match ? pattern_.IsAllOf(name) : pattern_.IsIn(name);
    });
  }

 private:
  const LoraOptions& options_;
  const std::string_view family_;
  const NamePattern pattern_;
};

// "model.layers.3.mlp.up_proj" to "model.layers.*.mlp.up_proj".
std::string WithoutNumbers(const std::string& path) {
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(path[i])) != 0;
    const bool begins = i == 0 || path[i - 1] == '.' || (!out.empty() && out.back() == '*');
    if (digit && begins) {
      if (out.empty() || out.back() != '*') out += '*';
    } else {
      out += path[i];
    }
  }
  return out;
}

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// The kinds of linear layers whose last parts are most like what was asked for.
std::vector<std::string> NearestNames(const std::string& wanted,
                                      const std::vector<engine::WeightSpec>& specs,
                                      const std::vector<bool>& linear) {
  constexpr size_t kMostNames = 4;
  std::vector<std::pair<size_t, std::string>> names;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!linear[i]) continue;
    std::string name = WithoutNumbers(engine::ModulePath(specs[i]));
    size_t distance = SIZE_MAX;
    for (const std::string_view end : engine::PathEnds(name)) {
      distance = std::min(distance, EditDistance(wanted, end));
    }
    const std::pair<size_t, std::string> entry(distance, std::move(name));
    if (std::find(names.begin(), names.end(), entry) == names.end()) names.push_back(entry);
  }
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> nearest;
  for (const auto& [distance, name] : names) {
    if (nearest.size() < kMostNames) nearest.push_back(name);
  }
  return nearest;
}

}  // namespace

std::vector<LoraTarget> ChooseLoraTargets(const LoraOptions& options,
                                          const engine::FamilySpec& family,
                                          const engine::ModelConfig& config) {
  const std::vector<engine::WeightSpec> specs = family.list_weights(config);
  const std::vector<bool> linear = engine::LinearWeights(family, config, specs);
  const float scale = engine::LoraScale(options.alpha, options.rank, options.rank_stabilized);
  const Matcher matcher(options, family.name);
  std::vector<LoraTarget> targets;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!linear[i] || !matcher.Matches(engine::ModulePath(specs[i]))) continue;
    targets.push_back({static_cast<int32_t>(i), options.rank, scale});
  }
  if (!targets.empty()) return targets;
  const std::vector<std::string> passed_over = TargetsPassedOver(options, family, config);
  throw Error(
      ErrorCode::kInvalidArgument,
      "lora.module_path: \"" + options.module_path + "\" matches " +
          (passed_over.empty() ? "no linear layer"
                               : "only " + Joined(passed_over) + ", which can have no adapter") +
          "; the nearest are called " + Joined(NearestNames(options.module_path, specs, linear)));
}

std::vector<std::string> TargetsPassedOver(const LoraOptions& options,
                                           const engine::FamilySpec& family,
                                           const engine::ModelConfig& config) {
  std::vector<std::string> names;
  if (options.module_path.empty()) return names;
  const std::vector<engine::WeightSpec> specs = family.list_weights(config);
  const std::vector<bool> linear = engine::LinearWeights(family, config, specs);
  const Matcher matcher(options, family.name);
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string path = engine::ModulePath(specs[i]);
    const bool matrix = specs[i].kind != engine::WeightKind::kVector;
    if (matrix && !linear[i] && matcher.Matches(path)) names.push_back(path);
  }
  return names;
}

std::vector<std::string> DescribeTargets(const std::vector<LoraTarget>& targets,
                                         const std::vector<engine::WeightSpec>& base_specs) {
  struct Kind {
    std::string name;
    int64_t layers = 0;
    int64_t parameters = 0;
  };
  std::vector<Kind> kinds;
  for (const LoraTarget& target : targets) {
    const engine::WeightSpec& spec = base_specs[static_cast<size_t>(target.weight)];
    const std::string name = WithoutNumbers(engine::ModulePath(spec));
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const Kind& other) { return other.name == name; });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {name});
    ++kind->layers;
    kind->parameters += target.rank * (spec.n + spec.k);
  }
  std::vector<std::string> lines;
  for (const Kind& kind : kinds) {
    lines.push_back(kind.name + ": " + std::to_string(kind.layers) +
                    (kind.layers == 1 ? " layer, " : " layers, ") +
                    std::to_string(kind.parameters) + " parameters");
  }
  return lines;
}

std::vector<LoraTarget> LoraTargetsOf(const engine::LoraAdapter& adapter,
                                      const engine::FamilySpec& family,
                                      const engine::ModelConfig& config) {
  const std::vector<int32_t> weights =
      engine::FindModules(adapter, family, config, family.list_weights(config));
  std::vector<LoraTarget> targets;
  for (size_t i = 0; i < weights.size(); ++i) {
    const engine::LoraModule& module = adapter.modules()[i];
    targets.push_back({weights[i], module.rank, module.scale});
  }
  return targets;
}

std::vector<float> InitialLora(const engine::WeightSpec& spec, LoraInit init, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(spec.n * spec.k), 0.0f);
  if (spec.name.ends_with(".lora_B.weight")) return values;
  const engine::Sha256Digest digest = engine::Sha256Of(std::as_bytes(std::span(spec.name)));
  uint64_t name = 0;
  std::memcpy(&name, digest.data(), sizeof name);
  const double inputs = static_cast<double>(spec.k);
  const double bound =
      init == LoraInit::kHeUniform ? std::sqrt(6.0 / inputs) : 1.0 / std::sqrt(inputs);
  for (size_t i = 0; i < values.size(); ++i) {
    const double u = engine::UniformDraw(seed ^ name, 0, static_cast<int64_t>(i));
    values[i] = static_cast<float>(bound * (2 * u - 1));
  }
  return values;
}

std::string LoraConfigOf(const LoraOptions& options, const std::vector<LoraTarget>& targets,
                         const std::vector<engine::WeightSpec>& base_specs,
                         const std::string& base_model) {
  engine::LoraConfig config;
  config.base_model = base_model;
  config.rank = options.rank;
  config.alpha = options.alpha;
  config.rank_stabilized = options.rank_stabilized;
  config.dropout = options.dropout;
  for (const LoraTarget& target : targets) {
    const engine::WeightSpec& spec = base_specs[static_cast<size_t>(target.weight)];
    config.target_modules.push_back(engine::ModulePath(spec));
    config.fan_in_fan_out = config.fan_in_fan_out || IsConv(spec);
  }
  return engine::LoraConfigText(config);
}

}  // namespace tandem::training
