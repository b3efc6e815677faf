// The targets of adapters: their description, initial values and configuration.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "engine/io/sha256.h"
#include "engine/model/weight_uses.h"
#include "engine/sampling/philox.h"
#include "training/lora/lora.h"
#include "training/lora/without_numbers.h"

namespace tandem::training {

namespace {

// GPT-2's "Conv1D": transformers names its kernel like a linear layer's weight but stores it as
// [in, out].
bool IsConv(const engine::WeightSpec& spec) {
  return spec.layout == engine::SourceLayout::kInOut && spec.name.ends_with(".weight");
}

LoraForm FormOf(const engine::LoraModule& module, engine::AdaptedWeight found) {
  if (found.is_head()) return LoraForm::kHead;
  if (found.use == engine::WeightUse::kEmbedding) return LoraForm::kEmbedding;
  return module.magnitude.data == nullptr ? LoraForm::kLinear : LoraForm::kDora;
}

}  // namespace

std::string PathOfTarget(const LoraTarget& target,
                         const std::vector<engine::WeightSpec>& base_specs) {
  const engine::WeightSpec& spec = base_specs[static_cast<size_t>(target.weight)];
  const bool is_head = target.form == LoraForm::kHead || target.form == LoraForm::kWholeHead;
  return engine::ModulePath(spec, is_head ? engine::WeightUse::kHead : engine::WeightUse::kOther,
                            spec.kind == engine::WeightKind::kEmbedding);
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
    const std::string name = WithoutNumbers(PathOfTarget(target, base_specs)) +
                             (target.rank == 0 ? " (a whole copy)" : "");
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const Kind& other) { return other.name == name; });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {name});
    ++kind->layers;
    for (const engine::WeightSpec& own : LoraSpecs(base_specs, {target})) {
      kind->parameters += own.n * own.k;
    }
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
  const std::vector<engine::WeightSpec> specs = family.list_weights(config);
  const auto modules = engine::FindModules(adapter, family, config, specs);
  std::vector<LoraTarget> targets;
  for (size_t i = 0; i < modules.size(); ++i) {
    const engine::LoraModule& module = adapter.modules()[i];
    targets.push_back({modules[i].weight, module.rank, module.scale, FormOf(module, modules[i])});
  }
  for (const engine::AdaptedWeight& found : engine::FindSaved(adapter, family, config, specs)) {
    const bool is_matrix =
        specs[static_cast<size_t>(found.weight)].kind != engine::WeightKind::kVector;
    targets.push_back({found.weight, 0, 1,
                       found.is_head() && is_matrix ? LoraForm::kWholeHead : LoraForm::kWhole});
  }
  return targets;
}

namespace {

// Standard normal numbers (Box-Muller).
double NormalDraw(uint64_t seed, int64_t i) {
  const double u = 1 - engine::UniformDraw(seed, 0, 2 * i);  // (0, 1]
  const double v = engine::UniformDraw(seed, 0, 2 * i + 1);
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

}  // namespace

std::vector<float> InitialLora(const engine::WeightSpec& spec, LoraInit init, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(spec.n * spec.k), 0.0f);
  if (spec.name.ends_with(".lora_B.weight") || spec.name.ends_with(".lora_embedding_A")) {
    return values;
  }
  const engine::Sha256Digest digest = engine::Sha256Of(std::as_bytes(std::span(spec.name)));
  uint64_t name = 0;
  std::memcpy(&name, digest.data(), sizeof name);
  const double inputs = static_cast<double>(spec.k);
  const double bound =
      init == LoraInit::kHeUniform ? std::sqrt(6.0 / inputs) : 1.0 / std::sqrt(inputs);
  const bool is_table = spec.name.ends_with(".lora_embedding_B");
  for (size_t i = 0; is_table && i < values.size(); ++i) {
    values[i] = static_cast<float>(NormalDraw(seed ^ name, static_cast<int64_t>(i)));
  }
  for (size_t i = 0; !is_table && i < values.size(); ++i) {
    const double u = engine::UniformDraw(seed ^ name, 0, static_cast<int64_t>(i));
    values[i] = static_cast<float>(bound * (2 * u - 1));
  }
  return values;
}

namespace {

// The alpha of lora.alpha_pattern; of a loaded adapter the one that gives its scale.
double ShortestAlpha(double alpha, const LoraTarget& target, const LoraOptions& options) {
  const double rounded = std::round(alpha * 1e4) / 1e4;
  const bool same =
      engine::LoraScale(rounded, target.rank, options.rank_stabilized) == target.scale;
  return same ? rounded : alpha;
}

}  // namespace

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
    const std::string path = PathOfTarget(target, base_specs);
    if (target.rank == 0) {
      std::vector<std::string>& saved = config.modules_to_save;
      if (std::find(saved.begin(), saved.end(), path) == saved.end()) saved.push_back(path);
      continue;
    }
    config.use_dora = config.use_dora || target.form == LoraForm::kDora;
    config.target_modules.push_back(path);
    if (target.rank != options.rank) config.ranks[path] = target.rank;
    const double rank = static_cast<double>(target.rank);
    const double alpha =
        static_cast<double>(target.scale) * (options.rank_stabilized ? std::sqrt(rank) : rank);
    if (target.scale != engine::LoraScale(options.alpha, target.rank, options.rank_stabilized)) {
      config.alphas[path] = ShortestAlpha(alpha, target, options);
    }
    config.fan_in_fan_out = config.fan_in_fan_out || IsConv(spec);
  }
  return engine::LoraConfigText(config);
}

}  // namespace tandem::training
