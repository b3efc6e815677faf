#include "engine/model/adapter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/quoted.h"
#include "engine/model/model.h"
#include "engine/model/plan_ops.h"

namespace tandem::engine {
namespace {

constexpr int64_t kPanelAlignment = 64;

std::string WithoutLeaf(const std::string& name) {
  for (const std::string_view leaf : {".weight", ".kernel"}) {
    if (name.ends_with(leaf)) return name.substr(0, name.size() - leaf.size());
  }
  return name;
}

std::string Shape(int64_t rows, int64_t cols) {
  return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
}

void CheckShape(const LoraAdapter& files, const std::string& name, const ConstTensorView& tensor,
                int64_t rows, int64_t cols, const WeightSpec& spec) {
  if (tensor.shape[0] == rows && tensor.shape[1] == cols) return;
  throw Error(ErrorCode::kDataLoss, files.name() + ": tensor " + Quoted(name) + " has shape " +
                                        Shape(tensor.shape[0], tensor.shape[1]) + ", but '" +
                                        spec.name + "' of the base model needs " +
                                        Shape(rows, cols));
}

void CheckFinite(const LoraAdapter& files, const std::string& name, const ConstTensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  ConvertToF32(tensor, values);
  if (std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) return;
  throw Error(ErrorCode::kDataLoss,
              files.name() + ": tensor " + Quoted(name) + " contains values that are not finite");
}

// Marks the weights of a module: a router's scales have its name before theirs.
void MarkModule(const std::vector<WeightSpec>& specs, int32_t weight, std::vector<bool>& marked) {
  const std::string& name = specs[static_cast<size_t>(weight)].name;
  const std::string module = name.substr(0, name.rfind('.') + 1);
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name.starts_with(module)) marked[i] = true;
  }
}

}  // namespace

std::vector<bool> LinearWeights(const FamilySpec& family, const ModelConfig& config,
                                const std::vector<WeightSpec>& specs) {
  std::vector<bool> linear(specs.size(), false);
  const ForwardPlan plan = PlanForward(family, config, specs, DType::kF32);
  for (const ForwardPlan::Op& op : plan.ops) {
    const std::string_view name = op.name;
    const int64_t count = name == "Linear" ? 1 : name == "ExpertLinear" ? op.n_experts : 0;
    for (int64_t i = 0; i < count; ++i) linear[static_cast<size_t>(op.weight + i)] = true;
  }
  return linear;
}

std::vector<bool> RouterWeights(const FamilySpec& family, const ModelConfig& config,
                                const std::vector<WeightSpec>& specs) {
  std::vector<bool> router(specs.size(), false);
  const ForwardPlan plan = PlanForward(family, config, specs, DType::kF32);
  for (const ForwardPlan::Op& op : plan.ops) {
    if (std::string_view(op.name) == "ScaleExperts") MarkModule(specs, op.weight, router);
    if (std::string_view(op.name) != "Route") continue;
    const ForwardPlan::Activation& logits = plan.activations[static_cast<size_t>(op.inputs[0])];
    const ForwardPlan::Op& product = plan.ops[static_cast<size_t>(logits.first_op)];
    // The gate of a shared expert routes among one.
    const bool chooses = logits.cols > 1 && std::string_view(product.name) == "Linear";
    if (chooses) router[static_cast<size_t>(product.weight)] = true;
  }
  return router;
}

std::string ModulePath(const WeightSpec& spec) {
  // The hub's GPT-2 files omit the name of the outermost module ("transformer").
  for (const std::string& alias : spec.aliases) {
    if (alias == "transformer." + spec.name) return WithoutLeaf(alias);
  }
  return WithoutLeaf(spec.name);
}

std::vector<int32_t> FindModules(const LoraAdapter& files, const FamilySpec& family,
                                 const ModelConfig& config, const std::vector<WeightSpec>& specs) {
  const std::vector<bool> linear = LinearWeights(family, config, specs);
  std::map<std::string, size_t> by_path;
  for (size_t i = 0; i < specs.size(); ++i) {
    by_path[WithoutLeaf(specs[i].name)] = i;
    for (const std::string& alias : specs[i].aliases) by_path[WithoutLeaf(alias)] = i;
  }
  std::vector<int32_t> weights;
  std::vector<bool> taken(specs.size(), false);
  for (const LoraModule& module : files.modules()) {
    const auto found = by_path.find(module.path);
    if (found == by_path.end() || !linear[found->second] || taken[found->second]) {
      const char* why = " belongs to no linear layer of the base model";
      if (found != by_path.end()) {
        why = linear[found->second]
                  ? " belongs to a layer that already has an adapter under another name"
                  : " adapts an embedding or the head, which is not supported";
      }
      throw Error(ErrorCode::kDataLoss, files.name() + ": tensor " + Quoted(module.a_name) + why);
    }
    taken[found->second] = true;
    const WeightSpec& spec = specs[found->second];
    CheckShape(files, module.a_name, module.a, module.rank, spec.k, spec);
    CheckShape(files, module.b_name, module.b, spec.n, module.rank, spec);
    weights.push_back(static_cast<int32_t>(found->second));
  }
  const auto& missing = files.targets_without_tensors();
  for (const auto& [path, index] : by_path) {
    for (const std::string_view end : PathEnds(path)) {
      if (missing.find(end) == missing.end()) continue;
      throw Error(ErrorCode::kDataLoss, files.name() + ": field 'target_modules' names " +
                                            Quoted(end) +
                                            ", but the adapter has no tensors for it");
    }
  }
  return weights;
}

int64_t AdapterBytes(const LoraAdapter& files, DType dtype) {
  int64_t bytes = 0;
  for (const LoraModule& module : files.modules()) {
    for (const int64_t size : {PanelBytes(dtype, module.rank, module.a.shape[1]),
                               PanelBytes(dtype, module.b.shape[0], module.rank)}) {
      bytes = CheckedAdd(bytes, RoundUp(size, kPanelAlignment), "adapter bytes");
    }
  }
  return bytes;
}

std::shared_ptr<const Adapter> Adapter::Load(const LoraAdapter& files,
                                             std::shared_ptr<const Model> base, OpsContext& ops) {
  const Model& model = *base;
  const std::vector<int32_t> weights =
      FindModules(files, model.family(), model.config(), model.weight_specs());
  const DType dtype = model.dtype();
  int64_t bytes = 0;
  const auto place = [&bytes](int64_t size) {
    const int64_t at = bytes;
    bytes = CheckedAdd(bytes, RoundUp(size, kPanelAlignment), "adapter bytes");
    return at;
  };
  std::vector<std::pair<int64_t, int64_t>> offsets;
  for (size_t i = 0; i < weights.size(); ++i) {
    const LoraModule& module = files.modules()[i];
    const WeightSpec& spec = model.weight_specs()[static_cast<size_t>(weights[i])];
    const int64_t a = place(PanelBytes(dtype, module.rank, spec.k));
    offsets.emplace_back(a, place(PanelBytes(dtype, spec.n, module.rank)));
  }

  const std::shared_ptr<Adapter> adapter(new Adapter());
  adapter->panels_ = AlignedBuffer(static_cast<size_t>(bytes));
  adapter->by_weight_.resize(model.weight_specs().size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const LoraModule& module = files.modules()[i];
    const WeightSpec& spec = model.weight_specs()[static_cast<size_t>(weights[i])];
    CheckFinite(files, module.a_name, module.a);
    CheckFinite(files, module.b_name, module.b);
    std::byte* a = adapter->panels_.data() + offsets[i].first;
    std::byte* b = adapter->panels_.data() + offsets[i].second;
    PackPanels(ops, module.a, SourceLayout::kOutIn, module.rank, spec.k, dtype, a);
    PackPanels(ops, module.b, SourceLayout::kOutIn, spec.n, module.rank, dtype, b);
    adapter->by_weight_[static_cast<size_t>(weights[i])] = {
        .a = {.panels = a, .dtype = dtype, .n = module.rank, .k = spec.k},
        .b = {.panels = b, .dtype = dtype, .n = spec.n, .k = module.rank},
        .scale = module.scale};
    adapter->rank_ = std::max(adapter->rank_, module.rank);
  }
  adapter->origin_ = files.origin();
  adapter->fingerprint_ = files.content_hash();
  adapter->base_ = std::move(base);
  return adapter;
}

std::vector<std::string> Adapter::BaseDifferences() const {
  std::vector<std::string> differences;
  if (!origin_.base_hash.empty() && origin_.base_hash != base_->content_hash()) {
    differences.push_back("trained on other weights: " + Quoted(origin_.base_model) +
                          " with SHA-256 " + Quoted(origin_.base_hash) + ", but this base has '" +
                          base_->content_hash() + "'");
  }
  const std::string compute(DTypeName(base_->dtype()));
  if (!origin_.compute.empty() && origin_.compute != compute) {
    differences.push_back("trained in " + Quoted(origin_.compute) +
                          ", but this base computes in '" + compute + "'");
  }
  // A different compute dtype already implies different weights, so report one sentence only.
  if (origin_.compute == compute && !origin_.weights.empty() &&
      origin_.weights != base_->weights_type()) {
    differences.push_back("trained with base weights in " + Quoted(origin_.weights) +
                          ", but this base holds them in '" + base_->weights_type() + "'");
  }
  return differences;
}

const LoraMatrices* Adapter::Find(int32_t weight) const {
  const LoraMatrices& found = by_weight_[static_cast<size_t>(weight)];
  return found.a.panels == nullptr ? nullptr : &found;
}

}  // namespace tandem::engine
