#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/family.h"
#include "engine/model/families/layer_ops.h"
#include "engine/model/families/weights.h"

namespace tandem::engine {

// The decoder of Gemma (Gemma Team 2024) and its later generations, under transformers' names. It
// differs from Llama's blocks by norm scales stored minus 1 and by embeddings scaled by the square
// root of their width. Generations differ in their config.json and in these traits.
struct GemmaTraits {
  bool output_norms = false;  // a norm after attention and MLP as well as before
  bool qk_norm = false;       // an RMSNorm over each head's q and k, before rope
  bool local_rope = false;    // windowed layers have their own rope table
};

// The ropes of Gemma 3 and 3n: either two bases and one scaling, or one object per layer type. The
// scaling applies to full-attention layers. Throws kDataLoss / kUnsupported naming the field.
void ParseGemmaRopes(const nlohmann::ordered_json& json, ModelConfig& config,
                     const std::string& source);
std::vector<WeightSpec> ListGemmaWeights(const ModelConfig& config, const GemmaTraits& traits);
// One table for every layer; with local_rope, a second one for windowed layers.
std::vector<RopeSpec> ListGemmaRopes(const ModelConfig& config, const GemmaTraits& traits);
void GemmaForward(const ModelConfig& config, const GemmaTraits& traits, const Weights& weights,
                  LayerOps& ops);

// The same for a FamilySpec, with the family's traits.
template <GemmaTraits traits>
std::vector<WeightSpec> ListGemmaWeights(const ModelConfig& config) {
  return ListGemmaWeights(config, traits);
}
template <GemmaTraits traits>
std::vector<RopeSpec> ListGemmaRopes(const ModelConfig& config) {
  return ListGemmaRopes(config, traits);
}
template <GemmaTraits traits>
void GemmaForward(const ModelConfig& config, const Weights& weights, LayerOps& ops) {
  GemmaForward(config, traits, weights, ops);
}

// The part of FamilySpec::shape_tiny that all generations share.
void ShapeTinyGemma(ModelConfig& config, int64_t n_kv_heads);

}  // namespace tandem::engine
