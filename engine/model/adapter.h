#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/adapter/lora_adapter.h"
#include "engine/base/aligned_buffer.h"
#include "engine/model/families/family.h"
#include "engine/ops/lora.h"

namespace tandem::engine {

class Model;

// By weight index: true for the weights that LayerOps::Linear and ExpertLinear multiply with. Only
// these can have an adapter; the head and the embedding tables cannot.
std::vector<bool> LinearWeights(const FamilySpec& family, const ModelConfig& config,
                                const std::vector<WeightSpec>& specs);

// By weight index: true for the routers of experts, the linear layers whose result is routed, and
// for scales that belong to them.
std::vector<bool> RouterWeights(const FamilySpec& family, const ModelConfig& config,
                                const std::vector<WeightSpec>& specs);

// The module path of a weight, as transformers and PEFT name it.
std::string ModulePath(const WeightSpec& spec);

// Maps each module of `files` to the index of its weight. Throws kDataLoss naming the tensor when
// the base has no such linear layer or the shapes differ. Throws it naming the entry of
// target_modules when the base has such modules and the files have no tensor for them.
std::vector<int32_t> FindModules(const LoraAdapter& files, const FamilySpec& family,
                                 const ModelConfig& config, const std::vector<WeightSpec>& specs);

// Bytes of the matrices once they are packed into panels.
int64_t AdapterBytes(const LoraAdapter& files, DType dtype);

// A LoRA adapter packed for one base model: A and B rounded once to the base's compute dtype, in
// panels. Immutable and shared; the base does not know it.
class Adapter {
 public:
  // Throws as FindModules does, and kDataLoss when a value is not finite.
  static std::shared_ptr<const Adapter> Load(const LoraAdapter& files,
                                             std::shared_ptr<const Model> base, OpsContext& ops);

  // Null where the weight has no adapter.
  const LoraMatrices* Find(int32_t weight) const;
  const Model& base() const { return *base_; }
  const LoraOrigin& origin() const { return origin_; }
  // One sentence for each difference between the base the adapter was trained on and this base, as
  // far as the adapter's files record it.
  std::vector<std::string> BaseDifferences() const;
  // Names the adapter's content; part of the key of cached prefixes.
  const std::string& fingerprint() const { return fingerprint_; }
  int64_t rank() const { return rank_; }  // largest of all weights
  int64_t bytes() const { return static_cast<int64_t>(panels_.size()); }

 private:
  Adapter() = default;

  std::shared_ptr<const Model> base_;
  LoraOrigin origin_;
  std::string fingerprint_;
  int64_t rank_ = 0;
  AlignedBuffer panels_;
  std::vector<LoraMatrices> by_weight_;  // a.panels null: no adapter
};

}  // namespace tandem::engine
