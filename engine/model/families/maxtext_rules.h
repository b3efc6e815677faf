#pragma once

#include <array>
#include <cstddef>

#include "engine/model/families/maxtext_tree.h"

namespace tandem::engine {

// Rules of MaxTextTree that families share. Without pairs of layers, {s} is empty.

// Keeps the order: a checkpoint's leaves are written in the order of these rows.
template <size_t... n>
constexpr auto JoinRules(const std::array<MaxTextRule, n>&... parts) {
  std::array<MaxTextRule, (n + ...)> rules{};
  size_t at = 0;
  const auto add = [&](const auto& part) {
    for (const MaxTextRule& rule : part) rules[at++] = rule;
  };
  (add(parts), ...);
  return rules;
}

inline constexpr std::array kMaxTextQueryAndKey{
    MaxTextRule{"model.layers.{}.self_attn.q_proj.weight", "self_attention{s}.query.kernel",
                MaxTextShape::kHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.k_proj.weight", "self_attention{s}.key.kernel",
                MaxTextShape::kHeadsOut}};
inline constexpr std::array kMaxTextValueAndOut{
    MaxTextRule{"model.layers.{}.self_attn.v_proj.weight", "self_attention{s}.value.kernel",
                MaxTextShape::kHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.o_proj.weight", "self_attention{s}.out.kernel",
                MaxTextShape::kHeadsIn}};
inline constexpr std::array kMaxTextMlp{
    MaxTextRule{"model.layers.{}.mlp.gate_proj.weight", "mlp{s}.wi_0.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.up_proj.weight", "mlp{s}.wi_1.kernel", MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.down_proj.weight", "mlp{s}.wo.kernel", MaxTextShape::kKernel}};
// RMSNorms over the heads of q and k.
inline constexpr std::array kMaxTextHeadNorms{
    MaxTextRule{"model.layers.{}.self_attn.q_norm.weight", "self_attention.query_norm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.self_attn.k_norm.weight", "self_attention.key_norm.scale",
                MaxTextShape::kVector}};
// Gemma 2 and 3: four norms around attention and MLP.
inline constexpr std::array kMaxTextFourNorms{
    MaxTextRule{"model.norm.weight", "decoder.decoder_norm.scale", MaxTextShape::kVector,
                MaxTextValue::kPlusOne},
    MaxTextRule{"model.layers.{}.input_layernorm.weight", "pre_self_attention_norm{s}.scale",
                MaxTextShape::kVector, MaxTextValue::kPlusOne},
    MaxTextRule{"model.layers.{}.post_attention_layernorm.weight",
                "post_self_attention_norm{s}.scale", MaxTextShape::kVector, MaxTextValue::kPlusOne},
    MaxTextRule{"model.layers.{}.pre_feedforward_layernorm.weight", "pre_ffw_norm{s}.scale",
                MaxTextShape::kVector, MaxTextValue::kPlusOne},
    MaxTextRule{"model.layers.{}.post_feedforward_layernorm.weight", "post_ffw_norm{s}.scale",
                MaxTextShape::kVector, MaxTextValue::kPlusOne}};
// Llama and Qwen 3. Despite its name post_attention_layernorm is the norm before the MLP.
inline constexpr std::array kMaxTextTablesAndTwoNorms{
    MaxTextRule{"model.embed_tokens.weight", "token_embedder.embedding", MaxTextShape::kTable},
    MaxTextRule{"lm_head.weight", "decoder.logits_dense.kernel", MaxTextShape::kKernel},
    MaxTextRule{"model.norm.weight", "decoder.decoder_norm.scale", MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.input_layernorm.weight", "pre_self_attention_layer_norm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.post_attention_layernorm.weight",
                "post_self_attention_layer_norm.scale", MaxTextShape::kVector}};

// The linear layers of decoders from Llama to Gemma.
inline constexpr std::array kMaxTextLinearLayers =
    JoinRules(kMaxTextQueryAndKey, kMaxTextValueAndOut, kMaxTextMlp);
inline constexpr LoraNames kDecoderLoraNames{.rules = kMaxTextLinearLayers};

}  // namespace tandem::engine
