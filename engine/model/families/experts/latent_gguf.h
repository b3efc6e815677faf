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

// DeepSeek-V2 and V3 in GGUF files, whose architecture is one: the score of experts tells them
// apart.

inline constexpr std::string_view kLatentGgufName = "deepseek2";

// Adds the settings of both families. Throws kUnsupported unless the score of experts is `score`.
void ReadLatentGguf(const GgufMetadata& metadata, int64_t score, nlohmann::ordered_json& json);
std::vector<GgufSetting> WriteLatentGguf(const ModelConfig& config);

// Rows of GgufArchitecture::limits.
std::string RequireInterleavedLatent(const ModelConfig& config);
// Readers derive the amplitude of YaRN from mscale_all_dim alone.
std::string RequireOneMscale(const ModelConfig& config);
// For GgufArchitecture::caveat.
std::string LatentGgufCaveat(const ModelConfig& config);

inline constexpr auto kLatentGgufLimits = std::to_array<GgufLimit>(
    {RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu, RefuseAttentionBias,
     RequireInterleavedLatent, RequireOneMscale, RequireDenseLayersFirst});

// Older files have keys and values of the latent in one tensor.
inline constexpr auto kLatentGgufParts =
    JoinGgufParts(kGgufTwoNormParts,
                  std::to_array<GgufPart>({
                      {"attn_q", "self_attn.q_proj"},
                      {"attn_q_a", "self_attn.q_a_proj"},
                      {"attn_q_a_norm", "self_attn.q_a_layernorm"},
                      {"attn_q_b", "self_attn.q_b_proj"},
                      {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
                      {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
                      {"attn_k_b", "self_attn.kv_b_proj", GgufChange::kLatentKeys},
                      {"attn_v_b", "self_attn.kv_b_proj", GgufChange::kLatentValues},
                      {"attn_kv_b", "self_attn.kv_b_proj"},
                      {"attn_output", "self_attn.o_proj"},
                      {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
                  }),
                  kGgufSharedExpertParts);

}  // namespace tandem::engine
