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
#include "engine/model/families/expert_parts.h"
#include "engine/sampling/philox.h"
#include "training/lora/module_names.h"
#include "training/lora/name_pattern.h"
#include "training/lora/pattern_branches.h"

namespace tandem::training {
namespace {

// GPT-2's "Conv1D": transformers names its kernel like a linear layer's weight but stores it as
// [in, out].
bool IsConv(const engine::WeightSpec& spec) {
  return spec.layout == engine::SourceLayout::kInOut && spec.name.ends_with(".weight");
}

// Compares an expression of lora.module_path with every name of a module.
class Matcher {
 public:
  Matcher(const std::string& expression, bool full_match, const engine::FamilySpec& family,
          const engine::ModelConfig& config)
      : matches_all_(expression.empty()),
        full_match_(full_match),
        family_(family),
        n_dense_layers_(engine::FirstExpertLayer(config)),
        pattern_("lora.module_path", expression) {}
  Matcher(const LoraOptions& options, const engine::FamilySpec& family,
          const engine::ModelConfig& config)
      : Matcher(options.module_path, options.full_match, family, config) {}

  bool Matches(const std::string& path) const {
    if (matches_all_) return true;
    const std::vector<std::string> names = NamesOfModule(family_, path, n_dense_layers_);
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return full_match_ ? pattern_.IsAllOf(name) : pattern_.IsIn(name);
    });
  }

  int64_t Count(const std::vector<std::string>& paths) const {
    return std::count_if(paths.begin(), paths.end(),
                         [&](const std::string& path) { return Matches(path); });
  }

 private:
  const bool matches_all_;
  const bool full_match_;
  const engine::FamilySpec& family_;
  const int64_t n_dense_layers_;
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

// The kinds of linear layers whose last path components resemble `wanted` most.
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

std::string Layers(int64_t count) {
  return std::to_string(count) + (count == 1 ? " layer" : " layers");
}

// The letters of an expression without its operators, for edit distances.
std::string WithoutSigns(const std::string& expression) {
  std::string words;
  for (const char c : expression) {
    if (std::string_view("\\.*+?^$()[]{}|").find(c) == std::string_view::npos) words += c;
  }
  return words;
}

// The end of a sentence about an alternative without a match: a suggestion.
std::string MeantBy(const std::string& branch, const std::string& alone, const LoraOptions& options,
                    const engine::FamilySpec& family, const engine::ModelConfig& config,
                    const std::vector<std::string>& paths,
                    const std::vector<std::string>& nearest) {
  if (options.full_match) {
    if (const int64_t n = Matcher(alone, false, family, config).Count(paths); n > 0) {
      const bool is_whole = branch == alone;
      return " as its whole path (lora.match: full), but " + Layers(n) +
             " as a part of it: " + (is_whole ? "write \"" + branch + ".*\" or set" : "set") +
             " lora.match: search";
    }
  }
  return "; the nearest names are " + Joined(nearest);
}

}  // namespace

std::vector<std::string> UnmatchedBranches(const LoraOptions& options,
                                           const engine::FamilySpec& family,
                                           const engine::ModelConfig& config) {
  const std::vector<engine::WeightSpec> specs = family.list_weights(config);
  const std::vector<bool> linear = engine::LinearWeights(family, config, specs);
  std::vector<std::string> paths, matrices;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (linear[i]) paths.push_back(engine::ModulePath(specs[i]));
    if (specs[i].kind != engine::WeightKind::kVector) {
      matrices.push_back(engine::ModulePath(specs[i]));
    }
  }
  std::vector<std::string> unmatched, others;
  size_t dead_until = 0;  // alternatives inside an unmatched one do not match either
  for (const PatternBranch& branch : BranchesOf(options.module_path)) {
    if (branch.last <= dead_until) continue;
    const std::string text = options.module_path.substr(branch.first, branch.last - branch.first);
    const Matcher matcher(branch.alone, options.full_match, family, config);
    // An alternative that matches embeddings or the head is not unmatched; TargetsPassedOver
    // reports it.
    if (matcher.Count(matrices) > 0) {
      others.push_back("\"" + text + "\" matches " + Layers(matcher.Count(paths)));
      continue;
    }
    dead_until = branch.last;
    unmatched.push_back("\"" + text + "\" matches no linear layer" +
                        MeantBy(text, branch.alone, options, family, config, paths,
                                NearestNames(WithoutSigns(text), specs, linear)));
  }
  if (!unmatched.empty()) unmatched.insert(unmatched.end(), others.begin(), others.end());
  return unmatched;
}

namespace {

void RefuseUnmatched(const LoraOptions& options, const engine::FamilySpec& family,
                     const engine::ModelConfig& config) {
  const std::vector<std::string> unmatched = UnmatchedBranches(options, family, config);
  if (unmatched.empty()) return;
  std::string text;
  for (const std::string& sentence : unmatched) text += (text.empty() ? "" : "; ") + sentence;
  throw Error(ErrorCode::kInvalidArgument,
              "lora.module_path: in \"" + options.module_path + "\" " + text +
                  "; set lora.unmatched: note to ignore alternatives without a match");
}

using LoraPattern = std::vector<std::pair<std::string, double>>;

// PEFT's rule: a name matches a path that it equals or ends, at a dot.
bool EndsPath(const std::string& path, const std::string& name) {
  return path == name || path.ends_with("." + name);
}

double ValueFor(const LoraPattern& pattern, const std::string& path, double otherwise) {
  const auto found = std::find_if(pattern.begin(), pattern.end(),
                                  [&](const auto& entry) { return EndsPath(path, entry.first); });
  return found == pattern.end() ? otherwise : found->second;
}

void RefuseUnusedPatterns(const char* key, const LoraPattern& pattern,
                          const std::vector<LoraTarget>& targets,
                          const std::vector<engine::WeightSpec>& specs) {
  for (const auto& entry : pattern) {
    const bool used = std::any_of(targets.begin(), targets.end(), [&](const LoraTarget& target) {
      return EndsPath(engine::ModulePath(specs[static_cast<size_t>(target.weight)]), entry.first);
    });
    if (used) continue;
    throw Error(ErrorCode::kInvalidArgument,
                std::string(key) + ": \"" + entry.first +
                    "\" is no adapted module and ends no path of one; a name is a path such as "
                    "self_attn.q_proj, not an expression");
  }
}

}  // namespace

std::vector<LoraTarget> ChooseLoraTargets(const LoraOptions& options,
                                          const engine::FamilySpec& family,
                                          const engine::ModelConfig& config) {
  const std::vector<engine::WeightSpec> specs = family.list_weights(config);
  const std::vector<bool> linear = engine::LinearWeights(family, config, specs);
  const Matcher matcher(options, family, config);
  const std::vector<bool> router = engine::RouterWeights(family, config, specs);
  std::vector<LoraTarget> targets;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!linear[i] || !matcher.Matches(engine::ModulePath(specs[i]))) continue;
    if (router[i] && options.module_path.empty()) continue;  // only an expression adapts routers
    const std::string path = engine::ModulePath(specs[i]);
    const auto rank = static_cast<int64_t>(
        ValueFor(options.rank_pattern, path, static_cast<double>(options.rank)));
    const double alpha = ValueFor(options.alpha_pattern, path, options.alpha);
    targets.push_back(
        {static_cast<int32_t>(i), rank, engine::LoraScale(alpha, rank, options.rank_stabilized)});
  }
  if (!targets.empty()) {
    RefuseUnusedPatterns("lora.rank_pattern", options.rank_pattern, targets, specs);
    RefuseUnusedPatterns("lora.alpha_pattern", options.alpha_pattern, targets, specs);
    if (options.unmatched == Unmatched::kError) RefuseUnmatched(options, family, config);
    return targets;
  }
  const std::vector<std::string> passed_over = TargetsPassedOver(options, family, config);
  if (!passed_over.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "lora.module_path: \"" + options.module_path + "\" matches only " +
                    Joined(passed_over) + ", which cannot have an adapter; the nearest names are " +
                    Joined(NearestNames(WithoutSigns(options.module_path), specs, linear)));
  }
  std::vector<std::string> paths;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (linear[i]) paths.push_back(engine::ModulePath(specs[i]));
  }
  throw Error(ErrorCode::kInvalidArgument,
              "lora.module_path: \"" + options.module_path + "\" matches no linear layer" +
                  MeantBy(options.module_path, options.module_path, options, family, config, paths,
                          NearestNames(WithoutSigns(options.module_path), specs, linear)));
}

std::vector<std::string> TargetsPassedOver(const LoraOptions& options,
                                           const engine::FamilySpec& family,
                                           const engine::ModelConfig& config) {
  std::vector<std::string> names;
  if (options.module_path.empty()) return names;
  const std::vector<engine::WeightSpec> specs = family.list_weights(config);
  const std::vector<bool> linear = engine::LinearWeights(family, config, specs);
  const Matcher matcher(options, family, config);
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
    const std::string path = engine::ModulePath(spec);
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
