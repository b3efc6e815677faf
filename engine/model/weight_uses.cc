#include "engine/model/weight_uses.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "engine/adapter/name_ends.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/model/plan_ops.h"

namespace tandem::engine {
namespace {

constexpr const char* kTiedHead = "lm_head";

std::string WithoutLeaf(const std::string& name) {
  for (const std::string_view leaf : {".weight", ".kernel"}) {
    if (name.ends_with(leaf)) return name.substr(0, name.size() - leaf.size());
  }
  return name;
}

WeightUse UseIn(std::string_view op) {
  constexpr std::array<std::pair<std::string_view, WeightUse>, 7> kUses = {{
      {"Linear", WeightUse::kLinear},
      {"Embed", WeightUse::kEmbedding},
      {"EmbedPositions", WeightUse::kPositions},
      {"RmsNorm", WeightUse::kNorm},
      {"RmsNormF32", WeightUse::kNorm},
      {"LayerNorm", WeightUse::kNorm},
      {"Logits", WeightUse::kHead},
  }};
  for (const auto& [name, use] : kUses) {
    if (op == name) return use;
  }
  return WeightUse::kOther;
}

std::string Shape(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

void CheckShape(const LoraAdapter& files, const std::string& name, const ConstTensorView& tensor,
                const std::vector<int64_t>& shape, const WeightSpec& spec) {
  if (tensor.shape == shape) return;
  throw Error(ErrorCode::kDataLoss, files.name() + ": tensor " + Quoted(name) + " has shape " +
                                        Shape(tensor.shape) + ", but '" + spec.name +
                                        "' of the base model needs " + Shape(shape));
}

[[noreturn]] void Unfit(const LoraAdapter& files, const std::string& tensor, const char* why) {
  throw Error(ErrorCode::kDataLoss, files.name() + ": tensor " + Quoted(tensor) + why);
}

// The weights of a base by the names that an adapter's files use.
class Lookup {
 public:
  Lookup(const FamilySpec& family, const ModelConfig& config, const std::vector<WeightSpec>& specs)
      : specs_(specs), uses_(UsesOf(family, config, specs)) {
    for (size_t i = 0; i < specs.size(); ++i) {
      by_name_[specs[i].name] = by_path_[WithoutLeaf(specs[i].name)] = static_cast<int32_t>(i);
      for (const std::string& alias : specs[i].aliases) {
        by_name_[alias] = by_path_[WithoutLeaf(alias)] = static_cast<int32_t>(i);
      }
    }
    if (!uses_.is_tied) return;
    by_path_.try_emplace(kTiedHead, -1);
    by_name_.try_emplace(std::string(kTiedHead) + ".weight", -1);
  }

  // -1: none.
  AdaptedWeight OfPath(const std::string& path) const { return Of(by_path_, path); }
  AdaptedWeight OfName(const std::string& name) const { return Of(by_name_, name); }
  const WeightSpec& spec(AdaptedWeight found) const {
    return specs_[static_cast<size_t>(found.weight)];
  }
  const std::map<std::string, int32_t>& by_path() const { return by_path_; }

 private:
  AdaptedWeight Of(const std::map<std::string, int32_t>& by, const std::string& name) const {
    const auto found = by.find(name);
    if (found == by.end()) return {};
    if (found->second < 0) return {uses_.head, WeightUse::kHead};  // of a tied table
    return {found->second, uses_.of[static_cast<size_t>(found->second)]};
  }

  const std::vector<WeightSpec>& specs_;
  const WeightUses uses_;
  std::map<std::string, int32_t> by_name_;
  std::map<std::string, int32_t> by_path_;  // -1: the head of a tied table
};

void CheckModule(const LoraAdapter& files, const LoraModule& module, AdaptedWeight found) {
  if (found.weight < 0) {
    Unfit(files, module.a_name, " belongs to no linear layer of the base model");
  }
  const bool is_table = found.use == WeightUse::kEmbedding;
  const bool is_layer = found.use == WeightUse::kLinear || found.use == WeightUse::kExpert ||
                        found.use == WeightUse::kHead;
  if (!is_table && !is_layer) {
    Unfit(files, module.a_name,
          " adapts neither a linear layer nor an embedding, which is not supported");
  }
  if (is_table && !module.is_embedding) {
    Unfit(files, module.a_name,
          " adapts a table of embeddings, which needs lora_embedding_A and lora_embedding_B");
  }
  if (is_layer && module.is_embedding) {
    Unfit(files, module.a_name, " adapts a linear layer, which needs lora_A and lora_B");
  }
  if (module.magnitude.data == nullptr || found.use == WeightUse::kLinear) return;
  throw Error(ErrorCode::kUnsupported,
              files.name() + ": tensor " + Quoted(module.magnitude_name) +
                  " belongs to an expert, an embedding or the head; DoRA is supported for other "
                  "linear layers only");
}

void CheckShapes(const LoraAdapter& files, const LoraModule& module, AdaptedWeight found,
                 const WeightSpec& spec) {
  const bool is_table = found.use == WeightUse::kEmbedding;
  const int64_t inputs = is_table ? spec.n : spec.k;
  const int64_t outputs = is_table ? spec.k : spec.n;
  CheckShape(files, module.a_name, module.a, {module.rank, inputs}, spec);
  CheckShape(files, module.b_name, module.b, {outputs, module.rank}, spec);
}

}  // namespace

WeightUses UsesOf(const FamilySpec& family, const ModelConfig& config,
                  const std::vector<WeightSpec>& specs) {
  WeightUses uses;
  uses.of.assign(specs.size(), WeightUse::kOther);
  std::vector<bool> seen(specs.size(), false);
  const ForwardPlan plan = PlanForward(family, config, specs, DType::kF32);
  for (const ForwardPlan::Op& op : plan.ops) {
    if (op.weight < 0) continue;
    const std::string_view name = op.name;
    if (name == "ExpertLinear") {
      for (int64_t e = 0; e < op.n_experts; ++e) {
        uses.of[static_cast<size_t>(op.weight + e)] = WeightUse::kExpert;
        seen[static_cast<size_t>(op.weight + e)] = true;
      }
      continue;
    }
    const WeightUse use = UseIn(name);
    const auto i = static_cast<size_t>(op.weight);
    if (use == WeightUse::kHead) {
      uses.head = op.weight;
      uses.is_tied = seen[i];
      if (seen[i]) continue;  // stays an embedding
    }
    uses.of[i] = seen[i] && uses.of[i] != use ? WeightUse::kOther : use;
    seen[i] = true;
  }
  // Biases are read together with the weight of their module.
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < specs.size(); ++i) by_name[specs[i].name] = i;
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string& name = specs[i].name;
    if (seen[i] || !name.ends_with(".bias")) continue;
    const auto sibling = by_name.find(name.substr(0, name.size() - 4) + "weight");
    if (sibling == by_name.end()) continue;
    const WeightUse use = uses.of[sibling->second];
    const bool has_bias =
        use == WeightUse::kLinear || use == WeightUse::kNorm || use == WeightUse::kHead;
    if (has_bias) uses.of[i] = use;
  }
  return uses;
}

std::string ModulePath(const WeightSpec& spec) {
  // The hub's GPT-2 files omit the name of the outermost module ("transformer").
  for (const std::string& alias : spec.aliases) {
    if (alias == "transformer." + spec.name) return WithoutLeaf(alias);
  }
  return WithoutLeaf(spec.name);
}

std::string ModulePath(const WeightSpec& spec, WeightUse use, bool is_tied) {
  if (use == WeightUse::kHead && is_tied) return kTiedHead;
  const std::string path = ModulePath(spec);
  return path.ends_with(".bias") ? path.substr(0, path.size() - 5) : path;
}

std::string LeafOf(const WeightSpec& spec) {
  return spec.name.ends_with(".bias") ? "bias" : "weight";
}

std::vector<AdaptedWeight> FindModules(const LoraAdapter& files, const FamilySpec& family,
                                       const ModelConfig& config,
                                       const std::vector<WeightSpec>& specs) {
  const Lookup lookup(family, config, specs);
  std::vector<AdaptedWeight> weights;
  for (const LoraModule& module : files.modules()) {
    const AdaptedWeight found = lookup.OfPath(module.path);
    CheckModule(files, module, found);
    if (std::find(weights.begin(), weights.end(), found) != weights.end()) {
      Unfit(files, module.a_name,
            " belongs to a layer that already has an adapter under another name");
    }
    CheckShapes(files, module, found, lookup.spec(found));
    weights.push_back(found);
  }
  const auto& missing = files.targets_without_tensors();
  for (const auto& [path, index] : lookup.by_path()) {
    for (const std::string_view end : PathEnds(path)) {
      if (missing.find(end) == missing.end()) continue;
      throw Error(ErrorCode::kDataLoss, files.name() + ": field 'target_modules' names " +
                                            Quoted(end) +
                                            ", but the adapter has no tensors for it");
    }
  }
  return weights;
}

bool CanBeSaved(WeightUse use) { return use != WeightUse::kExpert && use != WeightUse::kOther; }

std::vector<AdaptedWeight> FindSaved(const LoraAdapter& files, const FamilySpec& family,
                                     const ModelConfig& config,
                                     const std::vector<WeightSpec>& specs) {
  const Lookup lookup(family, config, specs);
  const std::vector<AdaptedWeight> adapted = FindModules(files, family, config, specs);
  std::vector<AdaptedWeight> weights;
  for (const WholeTensor& tensor : files.saved()) {
    const AdaptedWeight found = lookup.OfName(tensor.path + "." + tensor.leaf);
    if (found.weight < 0) Unfit(files, tensor.name, " belongs to no weight of the base model");
    if (!CanBeSaved(found.use)) {
      throw Error(ErrorCode::kUnsupported,
                  files.name() + ": tensor " + Quoted(tensor.name) +
                      " replaces a weight of experts, a convolution or a recurrence, which an "
                      "adapter cannot have; merge it into the model with PEFT");
    }
    const auto holds = [&](const std::vector<AdaptedWeight>& all) {
      return std::find(all.begin(), all.end(), found) != all.end();
    };
    if (holds(weights)) Unfit(files, tensor.name, " replaces a weight that another one replaces");
    if (holds(adapted)) {
      Unfit(files, tensor.name, " replaces a weight that also has lora_A and lora_B");
    }
    CheckShape(files, tensor.name, tensor.view, lookup.spec(found).source_shape,
               lookup.spec(found));
    weights.push_back(found);
  }
  const NameEnds missing(files.saved_without_tensors());
  for (const auto& each : lookup.by_path()) {
    const std::string& path = each.first;
    if (!missing.HasEndOf(path)) continue;
    const auto& entries = files.saved_without_tensors();
    const auto entry = std::find_if(entries.begin(), entries.end(),
                                    [&](const std::string& end) { return path.ends_with(end); });
    throw Error(ErrorCode::kDataLoss, files.name() + ": field 'modules_to_save' names " +
                                          Quoted(*entry) +
                                          ", but the adapter has no tensors for it");
  }
  return weights;
}

}  // namespace tandem::engine
