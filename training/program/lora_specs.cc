// The weights that adapters add to a program.

#include <utility>

#include "engine/adapter/lora_adapter.h"
#include "engine/model/weight_uses.h"
#include "training/program/program.h"

namespace tandem::training {
namespace {

engine::WeightSpec LoraSpec(std::string name, int64_t n, int64_t k) {
  engine::WeightSpec spec;
  spec.name = std::move(name);
  spec.source_shape = {n, k};
  spec.n = n;
  spec.k = k;
  return spec;
}

engine::WeightSpec VectorSpec(std::string name, int64_t n) {
  engine::WeightSpec spec;
  spec.name = std::move(name);
  spec.kind = engine::WeightKind::kVector;
  spec.source_shape = {n};
  spec.n = n;
  spec.decays = false;
  return spec;
}

std::string PathOf(const engine::WeightSpec& layer, LoraForm form) {
  const bool is_head = form == LoraForm::kHead || form == LoraForm::kWholeHead;
  const bool is_tied = layer.kind == engine::WeightKind::kEmbedding;
  return engine::ModulePath(layer, is_head ? engine::WeightUse::kHead : engine::WeightUse::kOther,
                            is_tied);
}

void AddLoraSpecs(const engine::WeightSpec& layer, const LoraTarget& target,
                  std::vector<engine::WeightSpec>* specs) {
  const std::string path = PathOf(layer, target.form);
  if (target.form == LoraForm::kWhole || target.form == LoraForm::kWholeHead) {
    engine::WeightSpec copy = layer;
    copy.name = engine::SavedTensorName(path, engine::LeafOf(layer));
    copy.aliases.clear();
    copy.parts.clear();  // adapters hold each weight alone
    specs->push_back(std::move(copy));
    return;
  }
  const bool is_table = target.form == LoraForm::kEmbedding;
  const auto [a, b] = engine::LoraTensorNames(path, is_table);
  if (is_table) {
    // The program gathers rows of A^T; PEFT stores A.
    engine::WeightSpec table = LoraSpec(a, layer.n, target.rank);
    table.kind = engine::WeightKind::kEmbedding;
    table.layout = engine::SourceLayout::kInOut;
    table.source_shape = {target.rank, layer.n};
    specs->push_back(std::move(table));
    specs->push_back(LoraSpec(b, layer.k, target.rank));
    return;
  }
  specs->push_back(LoraSpec(a, target.rank, layer.k));
  specs->push_back(LoraSpec(b, layer.n, target.rank));
  if (target.form == LoraForm::kDora) {
    specs->push_back(VectorSpec(engine::MagnitudeName(path), layer.n));
  }
}

}  // namespace

std::vector<engine::WeightSpec> LoraSpecs(const std::vector<engine::WeightSpec>& base,
                                          const std::vector<LoraTarget>& targets) {
  std::vector<engine::WeightSpec> specs;
  for (const LoraTarget& target : targets) AddLoraSpecs(base[target.weight], target, &specs);
  return specs;
}

int64_t LoraSpecCount(const LoraTarget& target) {
  if (target.rank == 0) return 1;
  return target.form == LoraForm::kDora ? 3 : 2;
}

std::vector<engine::WeightSpec> FactorSpecs(const std::vector<engine::WeightSpec>& base,
                                            const std::vector<LoraTarget>& targets) {
  std::vector<engine::WeightSpec> specs;
  for (const LoraTarget& target : targets) {
    if (target.form != LoraForm::kDora) continue;
    const engine::WeightSpec& layer = base[target.weight];
    specs.push_back(VectorSpec("factors of " + engine::ModulePath(layer), 2 * layer.n));
  }
  return specs;
}

}  // namespace tandem::training
