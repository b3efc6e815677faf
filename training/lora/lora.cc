#include "training/lora/lora.h"

#include <cmath>
#include <cstring>

#include "engine/base/check.h"
#include "engine/io/sha256.h"
#include "engine/model/adapter.h"
#include "engine/sampling/philox.h"
#include "training/name_pattern.h"

namespace tandem::training {
namespace {

// GPT-2's "Conv1D": transformers names its kernel like a linear layer's weight and stores it [in,
// out].
bool IsConv(const engine::WeightSpec& spec) {
  return spec.layout == engine::SourceLayout::kInOut && spec.name.ends_with(".weight");
}

}  // namespace

std::vector<LoraTarget> ChooseLoraTargets(const LoraOptions& options,
                                          const engine::FamilySpec& family,
                                          const engine::ModelConfig& config) {
  const std::vector<engine::WeightSpec> specs = family.list_weights(config);
  const std::vector<bool> linear = engine::LinearWeights(family, config, specs);
  const float scale = engine::LoraScale(options.alpha, options.rank, options.rank_stabilized);
  const NamePattern pattern("lora.module_path", options.module_path);
  std::vector<LoraTarget> targets;
  std::string some;  // for the message
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!linear[i]) continue;
    const std::string path = engine::ModulePath(specs[i]);
    const bool matches = options.module_path.empty() ||
                         (options.full_match ? pattern.IsAllOf(path) : pattern.IsIn(path));
    if (matches) {
      targets.push_back({static_cast<int32_t>(i), options.rank, scale});
    } else if (some.size() < 200) {
      some += (some.empty() ? "" : ", ") + path;
    }
  }
  if (targets.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "lora.module_path: \"" + options.module_path +
                                                 "\" matches no linear layer; they are called " +
                                                 some + ", ...");
  }
  return targets;
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
