#include "training/setup/lora_base.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/adapter/lora_adapter.h"
#include "engine/base/error.h"
#include "engine/formats/stored/stored_tensor.h"
#include "engine/model/adapter.h"
#include "engine/model/find_weight.h"
#include "training/lora/lora.h"
#include "training/step/trainer.h"

namespace tandem::training {
namespace {

// The first weight that the files store in blocks, or null.
const engine::WeightSpec* FirstInBlocks(const engine::ModelDir& dir,
                                        const std::vector<engine::WeightSpec>& weights) {
  for (const engine::WeightSpec& spec : weights) {
    const auto tensor = engine::FindWeight(dir, spec);
    if (tensor && tensor->encoding != engine::Encoding::kPlain) return &spec;
  }
  return nullptr;
}

}  // namespace

engine::LoadOptions BaseLoadOptions(const TrainSpec& spec, const engine::ModelDir& dir,
                                    const std::vector<engine::WeightSpec>& weights) {
  engine::LoadOptions load;
  load.dtype = spec.compute;
  switch (spec.lora.base) {
    case LoraBase::kF32:
    case LoraBase::kBF16:
      return load;
    case LoraBase::kInt8:
      load.block = engine::BlockFormat::kInt8;
      return load;
    case LoraBase::kInt4:
      load.block = engine::BlockFormat::kInt4;
      return load;
    case LoraBase::kAuto:
      break;
  }
  const engine::WeightSpec* in_blocks = FirstInBlocks(dir, weights);
  if (in_blocks == nullptr) return load;
  if (spec.compute == engine::DType::kF32) {
    throw Error(
        ErrorCode::kInvalidArgument,
        dir.name() + ": tensor " + in_blocks->name + " has quantised blocks (" +
            std::string(engine::EncodingName(engine::FindWeight(dir, *in_blocks)->encoding)) +
            "), which need bf16: set precision.compute to bf16, or lora.base_dtype to f32 to "
            "decode them");
  }
  load.dtype.reset();  // each weight keeps the file's type
  return load;
}

namespace {

void RefuseAdapterPlan(const AdapterPlan& plan, const engine::FamilySpec& family,
                       const engine::ModelConfig& config) {
  const std::vector<engine::WeightSpec> specs = family.list_weights(config);
  for (const LoraTarget& target : plan.targets) {
    const engine::WeightSpec& spec = specs[static_cast<size_t>(target.weight)];
    const bool is_table = spec.kind == engine::WeightKind::kEmbedding;
    if (!plan.options.export_merged || !is_table || !config.tied_embeddings) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "lora.export: must not be merged when the adapter changes " + spec.name +
                    ", which this model ties to its head: a merge would change both. Serve the "
                    "adapter beside its base");
  }
}

}  // namespace

AdapterPlan PlanAdapter(const LoraOptions& lora, const engine::FamilySpec& family,
                        const engine::ModelConfig& config) {
  AdapterPlan plan{.options = lora, .targets = {}, .base_hash = {}};
  if (lora.load_path.empty()) {
    plan.targets = ChooseLoraTargets(lora, family, config);
    RefuseAdapterPlan(plan, family, config);
    return plan;
  }
  const auto adapter = engine::LoraAdapter::Open(lora.load_path);
  plan.options.rank = adapter.rank();
  plan.options.alpha = adapter.alpha();
  plan.options.rank_stabilized = adapter.rank_stabilized();
  plan.base_hash = adapter.origin().base_hash;
  plan.targets = LoraTargetsOf(adapter, family, config);
  std::sort(plan.targets.begin(), plan.targets.end(), [](const LoraTarget& a, const LoraTarget& b) {
    return a.weight != b.weight ? a.weight < b.weight : a.form < b.form;
  });
  RefuseAdapterPlan(plan, family, config);
  return plan;
}

namespace {

bool IsHead(LoraForm form) { return form == LoraForm::kHead || form == LoraForm::kWholeHead; }

// The file's tensors of one target.
struct FileTensors {
  const engine::LoraModule* module = nullptr;
  const engine::WholeTensor* whole = nullptr;
};

// By weight, and whether as the head.
using ByUse = std::map<std::pair<int32_t, bool>, FileTensors>;

ByUse TensorsOf(const engine::LoraAdapter& adapter, const engine::FamilySpec& family,
                const engine::ModelConfig& config) {
  const std::vector<engine::WeightSpec> specs = family.list_weights(config);
  ByUse tensors;
  const auto modules = engine::FindModules(adapter, family, config, specs);
  for (size_t i = 0; i < modules.size(); ++i) {
    tensors[{modules[i].weight, modules[i].is_head()}].module = &adapter.modules()[i];
  }
  const auto saved = engine::FindSaved(adapter, family, config, specs);
  for (size_t i = 0; i < saved.size(); ++i) {
    const bool is_vector =
        specs[static_cast<size_t>(saved[i].weight)].kind == engine::WeightKind::kVector;
    tensors[{saved[i].weight, saved[i].is_head() && !is_vector}].whole = &adapter.saved()[i];
  }
  return tensors;
}

// The base's own values of a weight, decoded from its files.
void CopyFromBase(const engine::ModelDir& dir, const engine::WeightSpec& spec, size_t parameter,
                  ParameterStore& parameters) {
  const auto tensor = engine::FindWeight(dir, spec);
  if (!tensor) {
    throw Error(ErrorCode::kDataLoss, dir.name() + ": tensor " + spec.name + " is missing");
  }
  const std::vector<float> values = engine::DecodeTensor(*tensor);
  parameters.ImportSource(parameter, {reinterpret_cast<const std::byte*>(values.data()),
                                      engine::DType::kF32, spec.source_shape});
}

}  // namespace

void InitialAdapterWeights(const AdapterPlan& plan, const engine::ModelDir& base, uint64_t seed,
                           Trainer& trainer) {
  ParameterStore& parameters = trainer.parameters();
  const std::vector<engine::WeightSpec>& specs = trainer.base()->weight_specs();
  size_t next = 0;
  for (const LoraTarget& target : plan.targets) {
    if (target.rank == 0) {
      CopyFromBase(base, specs[static_cast<size_t>(target.weight)], next++, parameters);
      continue;
    }
    for (int matrix = 0; matrix < 2; ++matrix, ++next) {
      parameters.SetMaster(next,
                           InitialLora(parameters.whole_specs()[next], plan.options.init, seed));
    }
    if (target.form != LoraForm::kDora) continue;
    parameters.SetMaster(next++, trainer.BaseRowNorms(target.weight));  // B A is zero
  }
}

void LoadAdapterWeights(const AdapterPlan& plan, const engine::FamilySpec& family,
                        const engine::ModelConfig& config, ParameterStore& parameters) {
  const auto adapter = engine::LoraAdapter::Open(plan.options.load_path);
  const ByUse tensors = TensorsOf(adapter, family, config);
  const auto changed = [&]() -> Error {
    return {ErrorCode::kDataLoss, adapter.name() + ": changed while it was read"};
  };
  size_t next = 0;
  for (const LoraTarget& target : plan.targets) {
    const auto found = tensors.find({target.weight, IsHead(target.form)});
    if (found == tensors.end()) throw changed();
    const auto& [module, whole] = found->second;
    if (target.rank == 0) {
      if (whole == nullptr) throw changed();
      parameters.ImportSource(next++, whole->view);
      continue;
    }
    if (module == nullptr) throw changed();
    parameters.ImportSource(next++, module->a);
    parameters.ImportSource(next++, module->b);
    if (target.form == LoraForm::kDora) parameters.ImportSource(next++, module->magnitude);
  }
}

}  // namespace tandem::training
