#pragma once

#include <array>

#include "engine/model/families/gguf_architecture.h"

namespace tandem::engine {

// Rows of GgufArchitecture that families share.

inline constexpr std::string_view kGgufDecoderBlock = "model.layers.";

// Llama's names. The file alternates the rows of q and k that rope rotates together.
inline constexpr auto kGgufLlamaParts = std::to_array<GgufPart>({
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj", GgufChange::kQueryPairs},
    {"attn_k", "self_attn.k_proj", GgufChange::kKeyPairs},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
});
inline constexpr auto kGgufQwenParts = std::to_array<GgufPart>({
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
});
// OLMo 2 and 3: norms after attention and MLP instead of before.
inline constexpr auto kGgufNormsAfterParts = std::to_array<GgufPart>({
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
});
// Gemma 2 and 3: a norm after attention and MLP as well as before.
inline constexpr auto kGgufFourNormParts = std::to_array<GgufPart>({
    {"attn_norm", "input_layernorm", GgufChange::kPlus1},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm", GgufChange::kPlus1},
    {"attn_k_norm", "self_attn.k_norm", GgufChange::kPlus1},
    {"post_attention_norm", "post_attention_layernorm", GgufChange::kPlus1},
    {"ffn_norm", "pre_feedforward_layernorm", GgufChange::kPlus1},
    {"post_ffw_norm", "post_feedforward_layernorm", GgufChange::kPlus1},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
});
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
