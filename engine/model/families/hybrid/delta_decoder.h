#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/layer_ops.h"
#include "engine/model/families/weights.h"

namespace tandem::engine {

// The decoder of Qwen3-Next and Qwen3.5 under transformers' names: most layers are gated DeltaNets
// (Yang et al. 2024) with a short convolution, every fourth has attention with an output gate and
// partly rotated heads. Norm scales are stored minus 1, except that of the DeltaNet's output.
struct DeltaTraits {
  // Qwen3-Next: `in_proj_qkvz` and `in_proj_ba`, ordered by key head. Otherwise four layers.
  bool is_fused = false;
};
// The names of the MLP's experts, in families with experts.
inline constexpr ExpertNames kDeltaExperts{.shared = "mlp.shared_expert",
                                           .shared_gate = "mlp.shared_expert_gate.weight"};

// Parses the keys of the DeltaNet, the layer types and the rope, after ParseDecoder. Throws as
// hf_config.h.
void ParseDelta(const nlohmann::ordered_json& json, ModelConfig& config, const std::string& source);
void WriteDelta(const ModelConfig& config, nlohmann::ordered_json& json);

std::vector<WeightSpec> ListDeltaDecoder(const ModelConfig& config, const DeltaTraits& traits);
void DeltaDecoderForward(const ModelConfig& config, const DeltaTraits& traits,
                         const Weights& weights, LayerOps& ops);
// The same for a FamilySpec.
template <DeltaTraits traits>
std::vector<WeightSpec> ListDeltaDecoder(const ModelConfig& config) {
  return ListDeltaDecoder(config, traits);
}
template <DeltaTraits traits>
void DeltaDecoderForward(const ModelConfig& config, const Weights& weights, LayerOps& ops) {
  DeltaDecoderForward(config, traits, weights, ops);
}
void ShapeTinyDelta(ModelConfig& config);
void ShapeTinyDeltaExperts(ModelConfig& config);

}  // namespace tandem::engine
