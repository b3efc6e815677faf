// Qwen3, the dense models (Yang et al. 2025), as transformers' Qwen3ForCausalLM: Llama's blocks
// with an RMSNorm on every head of q and k before they are rotated.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/families.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Qwen3ForCausalLM", "qwen3"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 151936,
                                .hidden_dim = 4096,
                                .ffn_dim = 22016,
                                .n_kv_heads = 32,
                                .head_dim = 128,
                                .max_context_len = 32768},
                               source);
  c.family = "qwen3";
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  ParseQwenWindows(json, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Qwen3ForCausalLM", "qwen3");
  WriteQwenWindows(c, json);
  return json;
}

AttentionBiases Biases(const ModelConfig& c) {
  return {.qkv = c.attention_bias, .o = c.attention_bias};
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, c.hidden_dim));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    specs.push_back(VectorSpec(prefix + "input_layernorm.weight", c.hidden_dim));
    ListSelfAttention(specs, prefix + "self_attn", c, Biases(c));
    specs.push_back(VectorSpec(prefix + "self_attn.q_norm.weight", c.attention.head_dim));
    specs.push_back(VectorSpec(prefix + "self_attn.k_norm.weight", c.attention.head_dim));
    specs.push_back(VectorSpec(prefix + "post_attention_layernorm.weight", c.hidden_dim));
    ListGatedMlp(specs, prefix + "mlp", c);
  }
  specs.push_back(VectorSpec("model.norm.weight", c.hidden_dim));
  if (!c.tied_embeddings) {
    specs.push_back(MatrixSpec("lm_head.weight", c.vocab_size, c.hidden_dim));
  }
  return specs;
}

std::vector<RopeSpec> ListRopes(const ModelConfig& c) {
  return {ScaledRope(c.attention.head_dim, c.rope_theta, c.rope_scaling)};
}

struct Layer {
  const Weight& attn_norm;
  SelfAttention attn;
  const Weight &q_norm, &k_norm;
  const Weight& mlp_norm;
  GatedMlp mlp;
};

// Braces evaluate in order, so the members are taken as ListWeights lists them.
Layer TakeLayer(WeightCursor& w, const ModelConfig& c) {
  return {w.Take(),          TakeSelfAttention(w, Biases(c)), w.Take(), w.Take(), w.Take(),
          TakeGatedMlp(w, c)};
}

Act Block(const Layer& w, const ModelConfig& c, Act x, int64_t layer, LayerOps& ops) {
  const Act h = ops.RmsNorm(x, w.attn_norm, c.norm_eps);
  const Act q = ops.Rope(ops.RmsNormF32(Project(ops, h, w.attn.q), w.q_norm, c.norm_eps), 0);
  const Act k = ops.Rope(ops.RmsNormF32(Project(ops, h, w.attn.k), w.k_norm, c.norm_eps), 0);
  const Act v = Project(ops, h, w.attn.v);
  const Act attended = ops.Attention(q, k, v, c.LayerAttention(layer), layer);
  x = ops.Add(x, ops.Dropout(Project(ops, attended, w.attn.o), c.dropout));
  const Act m = ops.RmsNorm(x, w.mlp_norm, c.norm_eps);
  return ops.Add(x, ops.Dropout(RunGatedMlp(ops, m, w.mlp, c), c.dropout));
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Embed(embedding);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    x = Block(TakeLayer(w, c), c, x, layer, ops);
  }
  const Act normed = ops.RmsNorm(x, w.Take(), c.norm_eps);
  ops.Logits(normed, c.tied_embeddings ? embedding : w.Take(), nullptr, 0);
  TANDEM_CHECK(w.at_end());
}

}  // namespace

constinit const FamilySpec kQwen3Family{
    .name = "qwen3",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
};

}  // namespace tandem::engine
