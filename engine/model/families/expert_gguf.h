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

// The numbers that `expert_gating_func` has for the scores of experts.
inline constexpr int64_t kGgufSoftmax = 1, kGgufSigmoid = 2;
// The number of the file, or `fallback`: files without one are of the architecture's first models.
int64_t GgufScore(const GgufMetadata& metadata, int64_t fallback);
// Adds the router's settings under the names that GLM and DeepSeek share: scale, norm, groups,
// shared experts and the dense first layers. Throws kUnsupported unless the score is `score`.
void ReadGgufRouter(const GgufMetadata& metadata, int64_t score, nlohmann::ordered_json& json);
// Adds the same settings after those of AddGgufExperts.
void AddGgufRouter(const ModelConfig& config, std::vector<GgufSetting>& settings);

// Rows of GgufArchitecture::limits: readers fix these by the architecture.
std::string RefuseDenseLayers(const ModelConfig& config);
std::string RequireNormalisedExperts(const ModelConfig& config);
std::string RefuseNormalisedExperts(const ModelConfig& config);

std::string RequireDenseLayersFirst(const ModelConfig& config);
// Readers add the two best scores of a group.
std::string RequireTop2Groups(const ModelConfig& config);

// Experts with a biased choice, beside a shared one.
inline constexpr auto kGgufSharedExpertParts = std::to_array<GgufPart>({
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.{E}.gate_proj"},
    {"ffn_up_exps", "mlp.experts.{E}.up_proj"},
    {"ffn_down_exps", "mlp.experts.{E}.down_proj"},
    {"ffn_gate_up_exps", "mlp.experts.{E}.gate_proj", GgufChange::kFirstHalf},
    {"ffn_gate_up_exps", "mlp.experts.{E}.up_proj", GgufChange::kSecondHalf},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
});
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
