#pragma once

#include <vector>

#include "engine/model/config.h"
#include "engine/model/family.h"
#include "engine/model/layer_ops.h"
#include "engine/model/weights.h"

namespace tandem::engine {

// The decoder of Gemma (Gemma Team 2024) under transformers' names, and its later forms: Llama's
// blocks with norm scales that are stored less 1, and embeddings scaled by the root of their width.
// The generations differ in their config.json and in these traits.
struct GemmaTraits {
  bool output_norms = false;  // a norm after attention and MLP as well as before
  bool qk_norm = false;       // an RMSNorm over each head's q and k, before rope
  bool local_rope = false;    // windowed layers rotate by a table of their own
};

std::vector<WeightSpec> ListGemmaWeights(const ModelConfig& config, const GemmaTraits& traits);
// One for every layer; with local_rope, a second one for windowed layers.
std::vector<RopeSpec> ListGemmaRopes(const ModelConfig& config, const GemmaTraits& traits);
void GemmaForward(const ModelConfig& config, const GemmaTraits& traits, const Weights& weights,
                  LayerOps& ops);

// FamilySpec::shape_tiny, what all generations share of it.
void ShapeTinyGemma(ModelConfig& config, int64_t n_kv_heads);

}  // namespace tandem::engine
