#include "engine/model/adapter.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <type_traits>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/quoted.h"
#include "engine/model/model.h"
#include "engine/model/plan_ops.h"
#include "engine/ops/dora.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::engine {
namespace {

constexpr int64_t kPanelAlignment = 64;

void CheckFinite(const LoraAdapter& files, const std::string& name, const ConstTensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  ConvertToF32(tensor, values);
  if (std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) return;
  throw Error(ErrorCode::kDataLoss,
              files.name() + ": tensor " + Quoted(name) + " contains values that are not finite");
}

int64_t FloatBytes(int64_t n) { return n * static_cast<int64_t>(sizeof(float)); }

// The values as training computes with them: rounded to the compute dtype.
std::vector<float> RoundedValues(const ConstTensorView& tensor, DType dtype) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  ConvertToF32(tensor, values);
  if (dtype == DType::kBF16) {
    for (float& value : values) value = Bf16ToFloat(FloatToBf16(value));
  }
  return values;
}

// PEFT adds the base's weights of adapted embeddings and heads, and would load them. They must be
// those of this base.
void CheckBaseCopies(const LoraAdapter& files, const Model& model, OpsContext& ops) {
  const std::vector<WeightSpec>& specs = model.weight_specs();
  for (const WholeTensor& copy : files.base_copies()) {
    const auto found = std::find_if(specs.begin(), specs.end(), [&](const WeightSpec& spec) {
      const std::string name = copy.path + "." + copy.leaf;
      return spec.name == name || std::count(spec.aliases.begin(), spec.aliases.end(), name) > 0;
    });
    const std::string advice =
        "; save the adapter with save_embedding_layers=False, or train the weights with "
        "modules_to_save";
    if (found == specs.end()) {
      if (copy.path == "lm_head" && model.config().tied_embeddings) continue;  // the table again
      throw Error(ErrorCode::kDataLoss, files.name() + ": tensor " + Quoted(copy.name) +
                                            " is a copy of a weight that the base lacks" + advice);
    }
    const Weight& weight = model.weights()[static_cast<size_t>(found - specs.begin())];
    const bool is_matrix = found->kind != WeightKind::kVector;
    if (!is_matrix || weight.panels.block != BlockFormat::kNone) {
      throw Error(ErrorCode::kUnsupported,
                  files.name() + ": tensor " + Quoted(copy.name) +
                      " cannot be compared with the base's quantised weight" + advice);
    }
    bool is_same = copy.view.shape == found->source_shape && found->layout == SourceLayout::kOutIn;
    std::vector<float> row(static_cast<size_t>(found->k));
    const std::vector<float> values =
        is_same ? RoundedValues(copy.view, model.dtype()) : std::vector<float>();
    for (TokenId i = 0; is_same && i < found->n; ++i) {
      GatherRows(ops, weight.panels, {&i, 1}, row.data(), found->k);
      is_same = std::equal(row.begin(), row.end(), values.begin() + i * found->k);
    }
    if (is_same) continue;
    throw Error(ErrorCode::kDataLoss, files.name() + ": tensor " + Quoted(copy.name) +
                                          " differs from the base's weight" + advice);
  }
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

int64_t AdapterBytes(const LoraAdapter& files, DType dtype) {
  int64_t bytes = 0;
  const auto add = [&bytes](int64_t size) {
    bytes = CheckedAdd(bytes, RoundUp(size, kPanelAlignment), "adapter bytes");
  };
  for (const LoraModule& module : files.modules()) {
    add(module.is_embedding ? PanelBytes(dtype, module.a.shape[1], module.rank)
                            : PanelBytes(dtype, module.rank, module.a.shape[1]));
    add(PanelBytes(dtype, module.b.shape[0], module.rank));
    if (module.magnitude.data != nullptr) add(FloatBytes(module.magnitude.elements()));
  }
  for (const WholeTensor& tensor : files.saved()) {
    add(tensor.view.shape.size() == 2
            ? PanelBytes(dtype, tensor.view.shape[0], tensor.view.shape[1])
            : FloatBytes(tensor.view.elements()));
  }
  return bytes;
}

// Packs the files of one adapter, tensor by tensor, into one buffer.
class Adapter::Loader {
 public:
  Loader(const LoraAdapter& files, const Model& model, OpsContext& ops, Adapter* adapter)
      : files_(files),
        model_(model),
        ops_(ops),
        adapter_(*adapter),
        modules_(FindModules(files, model.family(), model.config(), model.weight_specs())),
        saved_(FindSaved(files, model.family(), model.config(), model.weight_specs())) {}

  void Load() {
    CheckBaseCopies(files_, model_, ops_);
    int64_t bytes = 0;
    Place([&](int64_t size) { return Reserve(size, &bytes); });
    adapter_.panels_ = AlignedBuffer(static_cast<size_t>(bytes));
    adapter_.by_weight_.resize(model_.weight_specs().size());
    bytes = 0;
    Place([&](int64_t size) { return adapter_.panels_.data() + Reserve(size, &bytes); });
  }

 private:
  static int64_t Reserve(int64_t size, int64_t* bytes) {
    const int64_t at = *bytes;
    *bytes = CheckedAdd(*bytes, RoundUp(size, kPanelAlignment), "adapter bytes");
    return at;
  }

  const WeightSpec& SpecOf(AdaptedWeight found) const {
    return model_.weight_specs()[static_cast<size_t>(found.weight)];
  }

  // Calls take(bytes) for the place of every tensor, in order. A place that is no number is a
  // pointer: the tensor is packed there.
  template <class Take>
  void Place(const Take& take) {
    constexpr bool kPacks = std::is_pointer_v<decltype(take(int64_t{0}))>;
    for (size_t i = 0; i < modules_.size(); ++i) {
      const LoraModule& module = files_.modules()[i];
      const WeightSpec& spec = SpecOf(modules_[i]);
      const bool is_table = modules_[i].use == WeightUse::kEmbedding;
      const int64_t inputs = is_table ? spec.n : spec.k, outputs = is_table ? spec.k : spec.n;
      const DType dtype = model_.dtype();
      const auto a = take(is_table ? PanelBytes(dtype, inputs, module.rank)
                                   : PanelBytes(dtype, module.rank, inputs));
      const auto b = take(PanelBytes(dtype, outputs, module.rank));
      const bool is_dora = module.magnitude.data != nullptr;
      const auto factors = take(is_dora ? FloatBytes(outputs) : 0);
      if constexpr (kPacks) {
        PackModule(module, modules_[i], a, b, reinterpret_cast<float*>(factors));
      }
    }
    for (size_t i = 0; i < saved_.size(); ++i) {
      const WeightSpec& spec = SpecOf(saved_[i]);
      const bool is_vector = spec.kind == WeightKind::kVector;
      const auto to =
          take(is_vector ? FloatBytes(spec.n) : PanelBytes(model_.dtype(), spec.n, spec.k));
      if constexpr (kPacks) PackSaved(files_.saved()[i], saved_[i], to);
    }
  }

  void PackModule(const LoraModule& module, AdaptedWeight found, std::byte* a, std::byte* b,
                  float* factors) {
    const WeightSpec& spec = SpecOf(found);
    const bool is_table = found.use == WeightUse::kEmbedding;
    const int64_t inputs = is_table ? spec.n : spec.k, outputs = is_table ? spec.k : spec.n;
    const DType dtype = model_.dtype();
    CheckFinite(files_, module.a_name, module.a);
    CheckFinite(files_, module.b_name, module.b);
    LoraMatrices lora;
    lora.scale = module.scale;
    // A table reads rows of A^T.
    lora.a = is_table ? PanelMatrix{.panels = a, .dtype = dtype, .n = inputs, .k = module.rank}
                      : PanelMatrix{.panels = a, .dtype = dtype, .n = module.rank, .k = inputs};
    lora.b = {.panels = b, .dtype = dtype, .n = outputs, .k = module.rank};
    PackPanels(ops_, module.a, is_table ? SourceLayout::kInOut : SourceLayout::kOutIn, lora.a.n,
               lora.a.k, dtype, a);
    PackPanels(ops_, module.b, SourceLayout::kOutIn, outputs, module.rank, dtype, b);
    if (module.magnitude.data != nullptr) {
      CheckFinite(files_, module.magnitude_name, module.magnitude);
      // As training: a rounded magnitude would scale its whole row.
      const std::vector<float> magnitude = RoundedValues(module.magnitude, DType::kF32);
      DoraFactors(ops_, model_.weights()[static_cast<size_t>(found.weight)].panels, lora,
                  magnitude.data(), factors, nullptr);
      lora.factors = factors;
    }
    adapter_.rank_ = std::max(adapter_.rank_, module.rank);
    if (found.is_head()) {
      adapter_.head_ = lora;
      return;
    }
    std::vector<LoraMatrices>& list = is_table ? adapter_.tables_ : adapter_.by_weight_;
    list.resize(model_.weight_specs().size());
    list[static_cast<size_t>(found.weight)] = lora;
  }

  void PackSaved(const WholeTensor& tensor, AdaptedWeight found, std::byte* to) {
    const WeightSpec& spec = SpecOf(found);
    CheckFinite(files_, tensor.name, tensor.view);
    Weight own = model_.weights()[static_cast<size_t>(found.weight)];
    if (spec.kind == WeightKind::kVector) {
      auto* values = reinterpret_cast<float*>(to);
      const std::vector<float> rounded = RoundedValues(tensor.view, model_.dtype());
      for (size_t i = 0; i < rounded.size(); ++i) values[i] = rounded[i] + spec.offset;
      own.vector = values;
    } else {
      PackPanels(ops_, tensor.view, spec.layout, spec.n, spec.k, model_.dtype(), to);
      own.panels = {.panels = to, .dtype = model_.dtype(), .n = spec.n, .k = spec.k};
    }
    if (found.is_head() && spec.kind != WeightKind::kVector) {
      adapter_.own_head_ = {own};
      return;
    }
    adapter_.own_.resize(model_.weight_specs().size());
    adapter_.own_[static_cast<size_t>(found.weight)] = own;
  }

  const LoraAdapter& files_;
  const Model& model_;
  OpsContext& ops_;
  Adapter& adapter_;
  const std::vector<AdaptedWeight> modules_;
  const std::vector<AdaptedWeight> saved_;
};

std::shared_ptr<const Adapter> Adapter::Load(const LoraAdapter& files,
                                             std::shared_ptr<const Model> base, OpsContext& ops) {
  const std::shared_ptr<Adapter> adapter(new Adapter());
  Loader(files, *base, ops, adapter.get()).Load();
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
  return Has(found) ? &found : nullptr;
}

const LoraMatrices* Adapter::FindEmbedding(int32_t weight) const {
  if (tables_.empty()) return nullptr;
  const LoraMatrices& found = tables_[static_cast<size_t>(weight)];
  return Has(found) ? &found : nullptr;
}

const Weight* Adapter::Own(int32_t weight, bool as_head) const {
  if (as_head && !own_head_.empty() && own_head_[0].index == weight) return &own_head_[0];
  if (as_head && base_->weight_specs()[static_cast<size_t>(weight)].kind != WeightKind::kVector) {
    return nullptr;
  }
  if (own_.empty()) return nullptr;
  const Weight& found = own_[static_cast<size_t>(weight)];
  return found.spec == nullptr ? nullptr : &found;
}

}  // namespace tandem::engine
