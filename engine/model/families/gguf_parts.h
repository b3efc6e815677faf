#pragma once

#include <array>

#include "engine/model/families/gguf_architecture.h"

namespace tandem::engine {

// Rows of GgufArchitecture that families share.

inline constexpr std::string_view kGgufDecoderBlock = "model.layers.";

// For rows in several lists.
template <size_t... n>
constexpr auto JoinGgufParts(const std::array<GgufPart, n>&... parts) {
  std::array<GgufPart, (n + ...)> rows{};
  size_t at = 0;
  const auto add = [&](const auto& part) {
    for (const GgufPart& row : part) rows[at++] = row;
  };
  (add(parts), ...);
  return rows;
}

// The parts of a block under the names that most classes of transformers share.
inline constexpr auto kGgufTwoNormParts = std::to_array<GgufPart>({
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
});
inline constexpr auto kGgufAttentionParts = std::to_array<GgufPart>({
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
});
// The file alternates the rows of q and k that rope rotates together.
inline constexpr auto kGgufPairedAttentionParts = std::to_array<GgufPart>({
    {"attn_q", "self_attn.q_proj", GgufChange::kQueryPairs},
    {"attn_k", "self_attn.k_proj", GgufChange::kKeyPairs},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
});
inline constexpr auto kGgufHeadNormParts = std::to_array<GgufPart>({
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
});
inline constexpr auto kGgufPlainMlpParts = std::to_array<GgufPart>({
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
});
inline constexpr auto kGgufMlpParts =
    JoinGgufParts(std::to_array<GgufPart>({{"ffn_gate", "mlp.gate_proj"}}), kGgufPlainMlpParts);

inline constexpr auto kGgufLlamaParts =
    JoinGgufParts(kGgufTwoNormParts, kGgufPairedAttentionParts, kGgufMlpParts);
inline constexpr auto kGgufQwenParts =
    JoinGgufParts(kGgufTwoNormParts, kGgufAttentionParts, kGgufHeadNormParts, kGgufMlpParts);
// OLMo 2 and 3: norms after attention and MLP instead of before.
inline constexpr auto kGgufNormsAfterParts =
    JoinGgufParts(kGgufAttentionParts, kGgufHeadNormParts, kGgufMlpParts,
                  std::to_array<GgufPart>({
                      {"post_attention_norm", "post_attention_layernorm"},
                      {"post_ffw_norm", "post_feedforward_layernorm"},
                  }));
// Gemma 2 and 3: a norm after attention and MLP as well as before.
inline constexpr auto kGgufFourNormParts =
    JoinGgufParts(kGgufAttentionParts, kGgufMlpParts,
                  std::to_array<GgufPart>({
                      {"attn_norm", "input_layernorm", GgufChange::kPlus1},
                      {"attn_q_norm", "self_attn.q_norm", GgufChange::kPlus1},
                      {"attn_k_norm", "self_attn.k_norm", GgufChange::kPlus1},
                      {"post_attention_norm", "post_attention_layernorm", GgufChange::kPlus1},
                      {"ffn_norm", "pre_feedforward_layernorm", GgufChange::kPlus1},
                      {"post_ffw_norm", "post_feedforward_layernorm", GgufChange::kPlus1},
                  }));
inline constexpr auto kGgufDecoderEnds = std::to_array<GgufPart>({
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
});
// The norm's scale is stored minus 1.
inline constexpr auto kGgufOffsetNormEnds = std::to_array<GgufPart>({
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm", GgufChange::kPlus1},
    {"output", "lm_head"},
});

}  // namespace tandem::engine
