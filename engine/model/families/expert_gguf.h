#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/gguf_architecture.h"

namespace tandem::engine {

// Parts of GgufArchitecture that families with experts share.

// Adds the numbers of experts and of chosen ones under config.json's names of the family.
void ReadGgufExperts(const GgufMetadata& metadata, const char* count_field,
                     nlohmann::ordered_json& json);
void AddGgufExperts(const ModelConfig& config, std::vector<GgufSetting>& settings);

// Rows of GgufArchitecture::limits: readers fix these by the architecture.
std::string RefuseDenseLayers(const ModelConfig& config);
std::string RequireNormalisedExperts(const ModelConfig& config);
std::string RefuseNormalisedExperts(const ModelConfig& config);

// Attention, norms and router of a block whose q and k have norms.
inline constexpr auto kGgufNormedExpertParts = std::to_array<GgufPart>({
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.{E}.gate_proj"},
    {"ffn_up_exps", "mlp.experts.{E}.up_proj"},
    {"ffn_down_exps", "mlp.experts.{E}.down_proj"},
    {"ffn_gate_up_exps", "mlp.experts.{E}.gate_proj", GgufChange::kFirstHalf},
    {"ffn_gate_up_exps", "mlp.experts.{E}.up_proj", GgufChange::kSecondHalf},
});

}  // namespace tandem::engine
