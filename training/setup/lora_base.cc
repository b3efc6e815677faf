#include "training/setup/lora_base.h"

#include <algorithm>
#include <map>

#include "engine/adapter/lora_adapter.h"
#include "engine/base/error.h"
#include "engine/formats/stored/stored_tensor.h"
#include "engine/model/adapter.h"
#include "engine/model/find_weight.h"
#include "training/lora/lora.h"

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

AdapterPlan PlanAdapter(const LoraOptions& lora, const engine::FamilySpec& family,
                        const engine::ModelConfig& config) {
  AdapterPlan plan{.options = lora, .targets = {}, .base_hash = {}};
  if (lora.load_path.empty()) {
    plan.targets = ChooseLoraTargets(lora, family, config);
    return plan;
  }
  const auto adapter = engine::LoraAdapter::Open(lora.load_path);
  plan.options.rank = adapter.rank();
  plan.options.alpha = adapter.alpha();
  plan.options.rank_stabilized = adapter.rank_stabilized();
  plan.base_hash = adapter.origin().base_hash;
  plan.targets = LoraTargetsOf(adapter, family, config);
  std::sort(plan.targets.begin(), plan.targets.end(),
            [](const LoraTarget& a, const LoraTarget& b) { return a.weight < b.weight; });
  return plan;
}

void LoadAdapterWeights(const AdapterPlan& plan, const engine::FamilySpec& family,
                        const engine::ModelConfig& config, ParameterStore& parameters) {
  const auto adapter = engine::LoraAdapter::Open(plan.options.load_path);
  const std::vector<int32_t> weights =
      engine::FindModules(adapter, family, config, family.list_weights(config));
  std::map<int32_t, const engine::LoraModule*> by_weight;
  for (size_t i = 0; i < weights.size(); ++i) by_weight[weights[i]] = &adapter.modules()[i];
  for (size_t i = 0; i < plan.targets.size(); ++i) {
    const auto found = by_weight.find(plan.targets[i].weight);
    if (found == by_weight.end()) {
      throw Error(ErrorCode::kDataLoss, adapter.name() + ": changed while it was read");
    }
    parameters.ImportSource(2 * i, found->second->a);
    parameters.ImportSource(2 * i + 1, found->second->b);
  }
}

}  // namespace tandem::training
