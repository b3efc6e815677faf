#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/adapter/lora_adapter.h"
#include "engine/model/families/family.h"

namespace tandem::engine {

// The op of the forward pass that reads a weight.
enum class WeightUse : uint8_t {
  kLinear,
  kExpert,
  kEmbedding,  // by tokens
  kPositions,  // by positions
  kNorm,
  kHead,
  kOther,
};

// How a family's forward pass uses its weights.
struct WeightUses {
  // By weight. A bias has the use of its module's weight. A tied table is an embedding here.
  std::vector<WeightUse> of;
  int32_t head = -1;     // the weight of the head
  bool is_tied = false;  // which is also the table of embeddings
};
WeightUses UsesOf(const FamilySpec& family, const ModelConfig& config,
                  const std::vector<WeightSpec>& specs);

// The weight that a tensor of an adapter belongs to, and which of its uses. A tied table has two.
struct AdaptedWeight {
  int32_t weight = -1;
  WeightUse use = WeightUse::kLinear;

  bool is_head() const { return use == WeightUse::kHead; }
  bool operator==(const AdaptedWeight&) const = default;
};

// The module path of a weight, as transformers and PEFT name it.
std::string ModulePath(const WeightSpec& spec);
// Likewise of one use: the head of a tied table is "lm_head".
std::string ModulePath(const WeightSpec& spec, WeightUse use, bool is_tied);
// "weight" or "bias": the end of the name.
std::string LeafOf(const WeightSpec& spec);

// Maps each module of `files` to its weight. Throws kDataLoss naming the tensor when the base has
// no such layer or the shapes differ. Throws it naming the entry of target_modules or
// modules_to_save when the base has such modules and the files have no tensor for them. Throws
// kUnsupported for DoRA on anything but plain linear layers.
std::vector<AdaptedWeight> FindModules(const LoraAdapter& files, const FamilySpec& family,
                                       const ModelConfig& config,
                                       const std::vector<WeightSpec>& specs);
// Likewise for each tensor of files.saved(). Throws kUnsupported where an adapter cannot replace
// the weight: experts, routers' vectors, convolutions and states.
std::vector<AdaptedWeight> FindSaved(const LoraAdapter& files, const FamilySpec& family,
                                     const ModelConfig& config,
                                     const std::vector<WeightSpec>& specs);
// Whether an adapter can hold a copy of a weight with this use.
bool CanBeSaved(WeightUse use);

}  // namespace tandem::engine
