#pragma once

#include <string_view>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/layer_ops.h"
#include "engine/model/families/weights.h"

namespace tandem::engine {

// The decoder that dense families since Llama (Touvron et al. 2023) share, under transformers'
// names: grouped-query attention with rotary positions and an MLP, each added to the residual
// stream. The families differ in their config.json and in these traits.

enum class NormKind : uint8_t {
  kRms,
  kLayer,        // with scale and bias
  kLayerOffset,  // with scale, stored minus 1, and bias
  kLayerWithoutBias,
  kLayerBare,  // without parameters
};
enum class QkNorm : uint8_t { kNone, kHeads, kWidth };  // RMSNorm over each head, or the whole row
enum class MlpKind : uint8_t { kGated, kFusedGate, kPlain };  // kFusedGate: one product, gate first

// The norms of a block. An empty name: no norm in this place.
struct BlockNorms {
  std::string_view attention_in = "input_layernorm";
  std::string_view attention_out = "";
  std::string_view mlp_in = "post_attention_layernorm";
  std::string_view mlp_out = "";
};
inline constexpr BlockNorms kNormsAfter{.attention_in = "",
                                        .attention_out = "post_attention_layernorm",
                                        .mlp_in = "",
                                        .mlp_out = "post_feedforward_layernorm"};

// Names in checkpoints, without ".weight" and ".bias". Those of a block follow its number.
struct DecoderNames {
  std::string_view embedding = "model.embed_tokens";
  std::string_view layers = "model.layers.";
  std::string_view norm = "model.norm";
  std::string_view head = "lm_head";
  std::string_view attention = "self_attn.";
  std::string_view q = "q_proj", k = "k_proj", v = "v_proj", o = "o_proj";
  std::string_view qkv = "qkv_proj";  // with fused_qkv: q, then k, then v
  std::string_view q_norm = "q_norm", k_norm = "k_norm";
  std::string_view mlp = "mlp.";
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string_view gate_up = "gate_up_proj";  // with kFusedGate
};

struct LlamaTraits {
  AttentionBiases biases = {};
  QkNorm qk_norm = QkNorm::kNone;
  bool qk_norm_after_rope = false;
  bool fused_qkv = false;
  bool qkv_by_head = false;  // with fused_qkv: q, k and v of each head; as many kv heads as heads
  NormKind norm = NormKind::kRms;
  BlockNorms norms = {};
  MlpKind mlp = MlpKind::kGated;
  // Attention and MLP both read the block's input. The MLP reads attention's norm if it has none.
  bool parallel = false;
  bool head_bias = false;
  DecoderNames names = {};
  ExpertNames experts = {};  // of layers with experts, in place of the MLP
};

// Llama's own: biases of q, k, v and o where the config has them.
LlamaTraits PlainTraits(const ModelConfig& config);

// Multipliers, limits and layers without rope are in the config. A block lists: norm, q, k, v, o,
// norms of q and k, norm, norm, MLP, norm.
std::vector<WeightSpec> ListLlamaWeights(const ModelConfig& config, const LlamaTraits& traits);
// One table, for all layers that have rope. With query_growth a second one, for queries.
std::vector<RopeSpec> ListLlamaRopes(const ModelConfig& config);
std::vector<RopeSpec> ListInterleavedRopes(const ModelConfig& config);
void LlamaForward(const ModelConfig& config, const LlamaTraits& traits, const Weights& weights,
                  LayerOps& ops);

// The same for a FamilySpec, with the family's traits.
template <LlamaTraits (*traits)(const ModelConfig&)>
std::vector<WeightSpec> ListLlamaWeights(const ModelConfig& config) {
  return ListLlamaWeights(config, traits(config));
}
template <LlamaTraits (*traits)(const ModelConfig&)>
void LlamaForward(const ModelConfig& config, const Weights& weights, LayerOps& ops) {
  LlamaForward(config, traits(config), weights, ops);
}

}  // namespace tandem::engine
