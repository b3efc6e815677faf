#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/adapter/lora_adapter.h"
#include "engine/base/aligned_buffer.h"
#include "engine/model/families/family.h"
#include "engine/model/weight_uses.h"
#include "engine/ops/lora.h"

namespace tandem::engine {

class Model;

// By weight index: true for the weights that LayerOps::Linear and ExpertLinear multiply with, which
// the head and the tables of embeddings are not.
std::vector<bool> LinearWeights(const FamilySpec& family, const ModelConfig& config,
                                const std::vector<WeightSpec>& specs);

// By weight index: true for the routers of experts, the linear layers whose result is routed, and
// for scales that belong to them.
std::vector<bool> RouterWeights(const FamilySpec& family, const ModelConfig& config,
                                const std::vector<WeightSpec>& specs);

// Bytes of the matrices and whole copies once they are packed into panels.
int64_t AdapterBytes(const LoraAdapter& files, DType dtype);

// A LoRA adapter packed for one base model: A and B rounded once to the base's compute dtype, in
// panels; likewise its own copies of whole weights. Immutable and shared; the base does not know
// it.
class Adapter {
 public:
  // Throws as FindModules and FindSaved do, and kDataLoss when a value is not finite or when the
  // files hold weights of another base (PEFT's copies of adapted embeddings).
  static std::shared_ptr<const Adapter> Load(const LoraAdapter& files,
                                             std::shared_ptr<const Model> base, OpsContext& ops);

  // Of a linear layer or an expert. Null where the weight has no adapter.
  const LoraMatrices* Find(int32_t weight) const;
  // Of the head, and of a table of embeddings (a holds A^T, see AddEmbeddingLora).
  const LoraMatrices* FindHead() const { return Has(head_) ? &head_ : nullptr; }
  const LoraMatrices* FindEmbedding(int32_t weight) const;
  // The adapter's own copy of a weight for this use, or null.
  const Weight* Own(int32_t weight, bool as_head) const;
  bool has_own() const { return !own_.empty() || !own_head_.empty(); }
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
  class Loader;

  Adapter() = default;
  static bool Has(const LoraMatrices& lora) { return lora.a.panels != nullptr; }

  std::shared_ptr<const Model> base_;
  LoraOrigin origin_;
  std::string fingerprint_;
  int64_t rank_ = 0;
  AlignedBuffer panels_;
  std::vector<LoraMatrices> by_weight_;  // linear layers; a.panels null: no adapter
  std::vector<LoraMatrices> tables_;     // by weight; empty without adapted embeddings
  LoraMatrices head_;
  // By weight; spec null: none. Empty without modules_to_save.
  std::vector<Weight> own_;
  std::vector<Weight> own_head_;  // the head's matrix; at most one
};

}  // namespace tandem::engine
