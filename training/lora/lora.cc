#include "training/lora/lora.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/edit_distance.h"
#include "engine/model/adapter.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/weight_uses.h"
#include "training/lora/module_names.h"
#include "training/lora/name_pattern.h"
#include "training/lora/pattern_branches.h"
#include "training/lora/without_numbers.h"

namespace tandem::training {
namespace {

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
  if (options.embeddings) {
    const engine::WeightUses uses = engine::UsesOf(family, config, specs);
    const engine::WeightSpec& head = specs[static_cast<size_t>(uses.head)];
    matrices.push_back(engine::ModulePath(head, engine::WeightUse::kHead, uses.is_tied));
  }
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
      return target.rank > 0 && EndsPath(PathOfTarget(target, specs), entry.first);
    });
    if (used) continue;
    throw Error(ErrorCode::kInvalidArgument,
                std::string(key) + ": \"" + entry.first +
                    "\" is no adapted module and ends no path of one; a name is a path such as "
                    "self_attn.q_proj, not an expression");
  }
}

LoraTarget TargetOf(const LoraOptions& options, int32_t weight, const std::string& path,
                    LoraForm form) {
  const auto rank =
      static_cast<int64_t>(ValueFor(options.rank_pattern, path, static_cast<double>(options.rank)));
  const double alpha = ValueFor(options.alpha_pattern, path, options.alpha);
  return {weight, rank, engine::LoraScale(alpha, rank, options.rank_stabilized), form};
}

// The copies that lora.modules_to_save names.
std::vector<LoraTarget> CopiesToSave(const LoraOptions& options,
                                     const std::vector<engine::WeightSpec>& specs,
                                     const engine::WeightUses& uses) {
  std::vector<LoraTarget> copies;
  std::vector<bool> used(options.modules_to_save.size(), false);
  const auto add = [&](size_t i, engine::WeightUse use) {
    const std::string path = engine::ModulePath(specs[i], use, uses.is_tied);
    bool is_named = false;
    for (size_t n = 0; n < used.size(); ++n) {
      if (!EndsPath(path, options.modules_to_save[n])) continue;
      is_named = used[n] = true;
    }
    if (!is_named) return;
    if (!engine::CanBeSaved(use)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "lora.modules_to_save: an adapter cannot hold " + specs[i].name +
                      "; it can hold embeddings, norms, linear layers and the head");
    }
    const bool is_head =
        use == engine::WeightUse::kHead && specs[i].kind != engine::WeightKind::kVector;
    copies.push_back(
        {static_cast<int32_t>(i), 0, 1, is_head ? LoraForm::kWholeHead : LoraForm::kWhole});
  };
  for (size_t i = 0; i < specs.size(); ++i) {
    add(i, uses.of[i]);
    if (uses.is_tied && static_cast<int32_t>(i) == uses.head) add(i, engine::WeightUse::kHead);
  }
  for (size_t n = 0; n < used.size(); ++n) {
    if (used[n]) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "lora.modules_to_save: \"" + options.modules_to_save[n] +
                    "\" is no module of the model and ends no path of one; a name is a path such "
                    "as lm_head or model.norm, not an expression");
  }
  return copies;
}

void RefuseWithoutEmbeddings(const LoraOptions& options, const std::vector<LoraTarget>& targets) {
  const bool has_one = std::any_of(targets.begin(), targets.end(), [](const LoraTarget& target) {
    return target.form == LoraForm::kEmbedding || target.form == LoraForm::kHead;
  });
  if (has_one) return;
  throw Error(ErrorCode::kInvalidArgument,
              "lora.embeddings: lora.module_path \"" + options.module_path +
                  "\" names neither embeddings nor the head: add embed_tokens or lm_head to it");
}

}  // namespace

std::vector<LoraTarget> ChooseLoraTargets(const LoraOptions& options,
                                          const engine::FamilySpec& family,
                                          const engine::ModelConfig& config) {
  const std::vector<engine::WeightSpec> specs = family.list_weights(config);
  const engine::WeightUses uses = engine::UsesOf(family, config, specs);
  const std::vector<bool> linear = engine::LinearWeights(family, config, specs);
  const Matcher matcher(options, family, config);
  const std::vector<bool> router = engine::RouterWeights(family, config, specs);
  std::vector<LoraTarget> copies = CopiesToSave(options, specs, uses);
  const auto is_copied = [&](size_t weight, bool head) {
    return std::any_of(copies.begin(), copies.end(), [&](const LoraTarget& copy) {
      return copy.weight == static_cast<int32_t>(weight) &&
             (copy.form == LoraForm::kWholeHead) == head;
    });
  };
  std::vector<LoraTarget> targets;
  const auto add = [&](size_t i, const std::string& path, LoraForm form) {
    if (!matcher.Matches(path)) return;
    if (is_copied(i, form == LoraForm::kHead)) {
      if (options.module_path.empty()) return;
      throw Error(ErrorCode::kInvalidArgument,
                  "lora.modules_to_save: " + path +
                      " is trained as a whole, so lora.module_path must not match it");
    }
    targets.push_back(TargetOf(options, static_cast<int32_t>(i), path, form));
  };
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string path = engine::ModulePath(specs[i]);
    const bool is_table = uses.of[i] == engine::WeightUse::kEmbedding;
    if (linear[i] && !(router[i] && options.module_path.empty())) {
      if (options.use_dora && uses.of[i] == engine::WeightUse::kExpert && matcher.Matches(path)) {
        throw Error(ErrorCode::kInvalidArgument,
                    "lora.use_dora: " + path +
                        " is an expert, which cannot have DoRA: name other layers with "
                        "lora.module_path");
      }
      add(i, path, options.use_dora ? LoraForm::kDora : LoraForm::kLinear);
    }
    if (options.embeddings && is_table) add(i, path, LoraForm::kEmbedding);
    if (options.embeddings && static_cast<int32_t>(i) == uses.head) {
      add(i, engine::ModulePath(specs[i], engine::WeightUse::kHead, uses.is_tied), LoraForm::kHead);
    }
  }
  if (!targets.empty()) {
    if (options.embeddings) RefuseWithoutEmbeddings(options, targets);
    targets.insert(targets.end(), copies.begin(), copies.end());
    std::stable_sort(targets.begin(), targets.end(), [](const LoraTarget& a, const LoraTarget& b) {
      return a.weight != b.weight ? a.weight < b.weight : a.form < b.form;
    });
    RefuseUnusedPatterns("lora.rank_pattern", options.rank_pattern, targets, specs);
    RefuseUnusedPatterns("lora.alpha_pattern", options.alpha_pattern, targets, specs);
    if (options.unmatched == Unmatched::kError) RefuseUnmatched(options, family, config);
    return targets;
  }
  const std::vector<std::string> passed_over = TargetsPassedOver(options, family, config);
  if (!passed_over.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "lora.module_path: \"" + options.module_path + "\" matches only " +
                    Joined(passed_over) + ", which cannot have an adapter" +
                    (options.embeddings ? "" : " without lora.embeddings") +
                    "; the nearest names are " +
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
  const engine::WeightUses uses = engine::UsesOf(family, config, specs);
  const Matcher matcher(options, family, config);
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string path = engine::ModulePath(specs[i]);
    const bool matrix = specs[i].kind != engine::WeightKind::kVector;
    const bool is_adapted =
        linear[i] || (options.embeddings && (uses.of[i] == engine::WeightUse::kEmbedding ||
                                             static_cast<int32_t>(i) == uses.head));
    if (matrix && !is_adapted && matcher.Matches(path)) names.push_back(path);
  }
  return names;
}

}  // namespace tandem::training
