#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/weights.h"

namespace tandem::engine {

// Parts of Granite's families.

// Llama's keys, and the multipliers of embeddings, scores, residuals and logits.
ModelConfig ParseGranite(const nlohmann::ordered_json& json, const std::string& source);
void WriteGraniteMultipliers(const ModelConfig& config, nlohmann::ordered_json& json);
// Those of tiny test models.
void ShapeTinyGranite(ModelConfig& config);
// `logits_scaling`, by which logits are divided.
double GraniteLogitsScaling(const ModelConfig& config);
// The same in GGUF files.
void ReadGgufMultipliers(const GgufMetadata& metadata, nlohmann::ordered_json& json);
void AddGgufMultipliers(const ModelConfig& config, std::vector<GgufSetting>& settings);

// The experts of a layer: a softmax over the chosen ones, and tensors that hold all of them.
inline constexpr ExpertKeys kGraniteExpertKeys = LocalExpertKeys(8, 2, 11008, false);
inline constexpr ExpertNames kGraniteExperts{.router = "block_sparse_moe.router.layer.weight",
                                             .experts = "block_sparse_moe.experts"};
inline constexpr auto kGgufGraniteExpertParts = std::to_array<GgufPart>({
    {"ffn_gate_inp", "block_sparse_moe.router.layer"},
    {"ffn_gate_exps", "block_sparse_moe.experts.{E}.gate_proj"},
    {"ffn_up_exps", "block_sparse_moe.experts.{E}.up_proj"},
    {"ffn_down_exps", "block_sparse_moe.experts.{E}.down_proj"},
});
void ParseGraniteExperts(const nlohmann::ordered_json& json, ModelConfig& config,
                         const std::string& source);
void AddGraniteStacks(const ModelConfig& config, std::vector<WeightSpec>& specs);
void ShapeTinyGraniteExperts(ModelConfig& config);

}  // namespace tandem::engine
