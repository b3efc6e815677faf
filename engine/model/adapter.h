#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/adapter/lora_adapter.h"
#include "engine/base/aligned_buffer.h"
#include "engine/model/family.h"
#include "engine/ops/lora.h"

namespace tandem::engine {

class Model;

// The weights that Linear multiplies with, by index: what an adapter may belong to. The head and
// the embedding tables are not among them.
std::vector<bool> LinearWeights(const FamilySpec& family, const ModelConfig& config,
                                const std::vector<WeightSpec>& specs);

// The module that a weight belongs to, as transformers and PEFT name it.
std::string ModulePath(const WeightSpec& spec);

// Which weight each module of `files` is the adapter of. Throws kDataLoss naming the tensor when
// the base has no such linear layer or the shapes do not meet, or naming the entry of
// target_modules when the base has such modules and the files no tensor.
std::vector<int32_t> FindModules(const LoraAdapter& files, const FamilySpec& family,
                                 const ModelConfig& config, const std::vector<WeightSpec>& specs);

// What the matrices take once they are in panels.
int64_t AdapterBytes(const LoraAdapter& files, DType dtype);

// An adapter ready to run beside its base model: A and B rounded once to the base's compute dtype,
// in panels. Immutable and shared; the base knows nothing of it.
class Adapter {
 public:
  // Throws as FindModules; also when a value is not finite.
  static std::shared_ptr<const Adapter> Load(const LoraAdapter& files,
                                             std::shared_ptr<const Model> base, OpsContext& ops);

  // Null where the weight has no adapter.
  const LoraMatrices* Find(int32_t weight) const;
  const Model& base() const { return *base_; }
  const LoraOrigin& origin() const { return origin_; }
  // In what the base that it was trained beside differs from the one it runs beside, as far as its
  // files say: a sentence each.
  std::vector<std::string> BaseDifferences() const;
  // Names the adapter's content; part of the key of cached prefixes.
  const std::string& fingerprint() const { return fingerprint_; }
  int64_t rank() const { return rank_; }  // the largest
  int64_t bytes() const { return static_cast<int64_t>(panels_.size()); }

 private:
  Adapter() = default;

  std::shared_ptr<const Model> base_;
  LoraOrigin origin_;
  std::string fingerprint_;
  int64_t rank_ = 0;
  AlignedBuffer panels_;
  std::vector<LoraMatrices> by_weight_;  // a.panels null: none
};

}  // namespace tandem::engine
