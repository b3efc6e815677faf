#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/layer_ops.h"
#include "engine/model/families/weights.h"

namespace tandem::engine {

// The decoder of DeepSeek-V2 and V3 (DeepSeek-AI 2024), under transformers' names: pre-norm blocks
// of multi-head latent attention, dense MLPs in the first layers, experts with shared ones in the
// others. The keys and values of all heads are expanded from the latent before they are cached.

struct LatentDefaults {
  HfDefaults decoder;
  int64_t q_rank = 1536;
  int64_t n_experts = 0;
  int64_t top_k = 0;  // 0: the key is required
  int64_t expert_ffn_dim = 0;
  int64_t n_shared = 1;
  int64_t n_dense_layers = 0;
  double routed_scale = 1;
  bool normalise = false;
};
// Parses the keys that both families have, except the router's groups and scores.
ModelConfig ParseLatentDecoder(const nlohmann::ordered_json& json, const LatentDefaults& defaults,
                               const std::string& source);
nlohmann::ordered_json WriteLatentDecoder(const ModelConfig& config, const char* architecture,
                                          const char* model_type);

std::vector<WeightSpec> ListLatentWeights(const ModelConfig& config);
std::vector<RopeSpec> ListLatentRopes(const ModelConfig& config);
void LatentForward(const ModelConfig& config, const Weights& weights, LayerOps& ops);

void ShapeTinyLatent(ModelConfig& config);

}  // namespace tandem::engine
