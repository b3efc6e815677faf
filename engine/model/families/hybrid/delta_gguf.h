#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/expert_gguf.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"

namespace tandem::engine {

// Qwen3-Next and Qwen3.5 in GGUF files.

// Adds the settings of the decoder and its DeltaNets.
void ReadDeltaGguf(const GgufMetadata& metadata, nlohmann::ordered_json& json);
std::vector<GgufSetting> WriteDeltaGguf(const ModelConfig& config);
// The same with the sections of Qwen3.5's rope. A text has one position on all axes, so any
// sections give the same rope.
std::vector<GgufSetting> WriteSectionedDeltaGguf(const ModelConfig& config);

// Rows of GgufArchitecture::limits: readers know one size of a head, and an attention in every n-th
// layer.
std::string RequireOneDeltaHead(const ModelConfig& config);
std::string RequireAttentionInterval(const ModelConfig& config);
inline constexpr auto kDeltaGgufLimits =
    std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu,
                              RefuseAttentionBias, RequireOneDeltaHead, RequireAttentionInterval});
inline constexpr auto kDeltaExpertGgufLimits = std::to_array<GgufLimit>(
    {RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu, RefuseAttentionBias, RequireOneDeltaHead,
     RequireAttentionInterval, RefuseDenseLayers, RequireNormalisedExperts});

// Qwen3-Next's `in_proj_qkvz` has the parts of each key head together. The file has all q, all k
// and all v in one tensor, all z in another.
extern const GgufOrder kFusedDeltaQkv, kFusedDeltaGate;
// Qwen3.5's value heads are ordered by their key head. The file has the first of every key head,
// then the second of every key head.
extern const GgufOrder kTiledQkv, kTiledValues, kTiledHeads;

inline constexpr auto kDeltaGgufParts =
    JoinGgufParts(kGgufAttentionParts,
                  std::to_array<GgufPart>({
                      {"attn_norm", "input_layernorm", GgufChange::kPlus1},
                      {"attn_q_norm", "self_attn.q_norm", GgufChange::kPlus1},
                      {"attn_k_norm", "self_attn.k_norm", GgufChange::kPlus1},
                      {"post_attention_norm", "post_attention_layernorm", GgufChange::kPlus1},
                      {"ssm_norm", "linear_attn.norm"},
                  }));
inline constexpr auto kFusedDeltaGgufParts = std::to_array<GgufPart>({
    {"attn_qkv", "linear_attn.in_proj_qkvz", GgufChange::kNone, &kFusedDeltaQkv},
    {"attn_gate", "linear_attn.in_proj_qkvz", GgufChange::kNone, &kFusedDeltaGate},
    {"ssm_in", "linear_attn.in_proj_qkvz"},
    {"ssm_ba", "linear_attn.in_proj_ba"},
    {"ssm_conv1d", "linear_attn.conv1d", GgufChange::kTaps},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_a", "linear_attn.A_log", GgufChange::kNegativeExp},
    {"ssm_out", "linear_attn.out_proj"},
});
inline constexpr auto kTiledDeltaGgufParts = std::to_array<GgufPart>({
    {"attn_qkv", "linear_attn.in_proj_qkv", GgufChange::kNone, &kTiledQkv},
    {"attn_gate", "linear_attn.in_proj_z", GgufChange::kNone, &kTiledValues},
    {"ssm_beta", "linear_attn.in_proj_b", GgufChange::kNone, &kTiledHeads},
    {"ssm_alpha", "linear_attn.in_proj_a", GgufChange::kNone, &kTiledHeads},
    {"ssm_conv1d", "linear_attn.conv1d", GgufChange::kTaps, &kTiledQkv},
    {"ssm_dt.bias", "linear_attn.dt_bias", GgufChange::kNone, &kTiledHeads},
    {"ssm_a", "linear_attn.A_log", GgufChange::kNegativeExp, &kTiledHeads},
    {"ssm_out", "linear_attn.out_proj", GgufChange::kNone, nullptr, &kTiledValues},
});
inline constexpr auto kDeltaExpertGgufParts = JoinGgufParts(
    kGgufRouterParts, kGgufExpertParts, kGgufJoinedExpertParts, kGgufGatedExpertParts);

}  // namespace tandem::engine
