#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

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
// MaxText divides by the root of the head size in the weights of these.
inline constexpr std::array kMaxTextScaledQueryAndKey{
    MaxTextRule{"model.layers.{}.self_attn.q_proj.weight", "self_attention.query.kernel",
                MaxTextShape::kHeadsOut, MaxTextValue::kOverRootHeadDim},
    MaxTextRule{"model.layers.{}.self_attn.k_proj.weight", "self_attention.key.kernel",
                MaxTextShape::kHeadsOut}};
inline constexpr std::array kMaxTextQkvBiases{
    MaxTextRule{"model.layers.{}.self_attn.q_proj.bias", "self_attention.query.bias",
                MaxTextShape::kHeadsVector},
    MaxTextRule{"model.layers.{}.self_attn.k_proj.bias", "self_attention.key.bias",
                MaxTextShape::kHeadsVector},
    MaxTextRule{"model.layers.{}.self_attn.v_proj.bias", "self_attention.value.bias",
                MaxTextShape::kHeadsVector}};
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
// MaxText's names of products that some families fuse.
inline constexpr std::array kMaxTextFusedQkv{
    MaxTextRule{"model.layers.{}.self_attn.qkv_proj.weight", "self_attention{s}.qkv_proj.kernel",
                MaxTextShape::kKernel}};
inline constexpr std::array kMaxTextFusedMlp{
    MaxTextRule{"model.layers.{}.mlp.gate_up_proj.weight", "mlp{s}.wi.kernel",
                MaxTextShape::kKernel},
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

// Latent attention, with or without a latent of queries.
inline constexpr std::array kMaxTextLatentAttention{
    MaxTextRule{"model.layers.{}.self_attn.q_proj.weight", "self_attention.query.kernel",
                MaxTextShape::kQueryHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.q_a_proj.weight", "self_attention.wq_a.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.self_attn.q_a_layernorm.weight", "self_attention.q_norm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.self_attn.q_b_proj.weight", "self_attention.wq_b.kernel",
                MaxTextShape::kQueryHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.kv_a_proj_with_mqa.weight",
                "self_attention.wkv_a.kernel", MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.self_attn.kv_a_layernorm.weight", "self_attention.kv_norm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.self_attn.kv_b_proj.weight", "self_attention.wkv_b.kernel",
                MaxTextShape::kQueryHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.o_proj.weight", "self_attention.out.kernel",
                MaxTextShape::kQueryHeadsIn}};
// Experts as the only MLP of a layer.
inline constexpr std::array kMaxTextMoeBlock{
    MaxTextRule{"model.layers.{}.mlp.gate.weight", "moe_block.gate.kernel", MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.gate_proj.weight", "moe_block.wi_0",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.up_proj.weight", "moe_block.wi_1",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.down_proj.weight", "moe_block.wo",
                MaxTextShape::kKernel}};
// The experts of DeepSeek-V2 and V3, shared ones in one MLP.
inline constexpr std::array kMaxTextSharedExperts{
    MaxTextRule{"model.layers.{}.mlp.gate.weight", "DeepSeekMoeBlock_0.MoeBlock_0.gate.kernel",
                MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.gate.e_score_correction_bias",
                "DeepSeekMoeBlock_0.MoeBlock_0.gate.bias", MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.gate_proj.weight",
                "DeepSeekMoeBlock_0.MoeBlock_0.wi_0", MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.up_proj.weight",
                "DeepSeekMoeBlock_0.MoeBlock_0.wi_1", MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.experts.{E}.down_proj.weight",
                "DeepSeekMoeBlock_0.MoeBlock_0.wo", MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.shared_experts.gate_proj.weight",
                "DeepSeekMoeBlock_0.shared_experts.wi_0.kernel", MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.shared_experts.up_proj.weight",
                "DeepSeekMoeBlock_0.shared_experts.wi_1.kernel", MaxTextShape::kKernel},
    MaxTextRule{"model.layers.{}.mlp.shared_experts.down_proj.weight",
                "DeepSeekMoeBlock_0.shared_experts.wo.kernel", MaxTextShape::kKernel}};
inline constexpr std::array kMaxTextLatentDecoder = JoinRules(
    kMaxTextTablesAndTwoNorms, kMaxTextLatentAttention, kMaxTextMlp, kMaxTextSharedExperts);
inline constexpr MaxTextTree kLatentMaxText{.rules = kMaxTextLatentDecoder,
                                            .blocks = MaxTextBlocks::kDenseFirst};
inline constexpr LoraNames kLatentLoraNames{.rules = kMaxTextLatentDecoder,
                                            .blocks = MaxTextBlocks::kDenseFirst,
                                            .expert_block = "DeepSeekMoeBlock_0"};

// Gemma 1 and 2: MaxText pads 256,000 to 256,128.
inline int64_t MaxTextPaddedVocabulary(int64_t size) {
  constexpr int64_t kTheirs = 256000, kPadding = 128;
  return size > kTheirs && size <= kTheirs + kPadding ? kTheirs + kPadding : size + kPadding;
}

// For families whose windows MaxText does not compute.
inline std::string MaxTextHasNoWindow(const ModelConfig& config) {
  if (config.attention.window == 0) return "";
  return "MaxText has no sliding window in this family: beyond " +
         std::to_string(config.attention.window) + " tokens it computes a different model";
}

// The linear layers of decoders from Llama to Gemma.
inline constexpr std::array kMaxTextLinearLayers =
    JoinRules(kMaxTextQueryAndKey, kMaxTextValueAndOut, kMaxTextMlp);
inline constexpr LoraNames kDecoderLoraNames{.rules = kMaxTextLinearLayers};
// The same for decoders with experts in some layers.
inline constexpr std::array kMaxTextExpertLayers =
    JoinRules(kMaxTextLinearLayers, kMaxTextMoeBlock);
inline constexpr LoraNames kExpertLoraNames{.rules = kMaxTextExpertLayers};

}  // namespace tandem::engine
