#pragma once

#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/layer_ops.h"
#include "engine/model/families/weights.h"

namespace tandem::engine {

// The decoder of Llama (Touvron et al. 2023) and of the families derived from it, under
// transformers' names: pre-norm blocks of grouped-query attention with rotary positions and a gated
// MLP. The families differ in their config.json and in these traits.
struct LlamaTraits {
  AttentionBiases biases;
  bool qk_norm = false;  // an RMSNorm over each head's q and k, before rope
};

std::vector<WeightSpec> ListLlamaWeights(const ModelConfig& config, const LlamaTraits& traits);
// One table for all layers.
std::vector<RopeSpec> ListLlamaRopes(const ModelConfig& config);
void LlamaForward(const ModelConfig& config, const LlamaTraits& traits, const Weights& weights,
                  LayerOps& ops);

}  // namespace tandem::engine
