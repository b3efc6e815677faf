#include "engine/model/families/llama_decoder.h"

#include <string>

#include "engine/base/check.h"
#include "engine/model/families/hf_rope.h"

namespace tandem::engine {
namespace {

struct Layer {
  const Weight& attn_norm;
  SelfAttention attn;
  const Weight *q_norm, *k_norm;  // null without qk_norm
  const Weight& mlp_norm;
  GatedMlp mlp;
};

// Braced initialisers evaluate in order, so members are taken in the order of ListLlamaWeights.
Layer TakeLayer(WeightCursor& w, const ModelConfig& c, const LlamaTraits& traits) {
  return {w.Take(),
          TakeSelfAttention(w, traits.biases),
          traits.qk_norm ? &w.Take() : nullptr,
          traits.qk_norm ? &w.Take() : nullptr,
          w.Take(),
          TakeGatedMlp(w, c)};
}

Act NormHeads(LayerOps& ops, Act x, const Weight* norm, const ModelConfig& c) {
  return norm == nullptr ? x : ops.RmsNormF32(x, *norm, c.norm_eps);
}

Act Block(const Layer& w, const ModelConfig& c, Act x, int64_t layer, LayerOps& ops) {
  const Act h = ops.RmsNorm(x, w.attn_norm, c.norm_eps);  // [rows, hidden_dim]
  // q: [rows, n_heads * head_dim]; k, v: [rows, n_kv_heads * head_dim]
  const Act q = ops.Rope(NormHeads(ops, Project(ops, h, w.attn.q), w.q_norm, c), 0);
  const Act k = ops.Rope(NormHeads(ops, Project(ops, h, w.attn.k), w.k_norm, c), 0);
  const Act v = Project(ops, h, w.attn.v);
  const Act attended = ops.Attention(q, k, v, c.LayerAttention(layer), layer);
  x = ops.Add(x, ops.Dropout(Project(ops, attended, w.attn.o), c.dropout));
  const Act m = ops.RmsNorm(x, w.mlp_norm, c.norm_eps);
  return ops.Add(x, ops.Dropout(RunGatedMlp(ops, m, w.mlp, c), c.dropout));
}

}  // namespace

std::vector<WeightSpec> ListLlamaWeights(const ModelConfig& c, const LlamaTraits& traits) {
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, c.hidden_dim));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    specs.push_back(VectorSpec(prefix + "input_layernorm.weight", c.hidden_dim));
    ListSelfAttention(specs, prefix + "self_attn", c, traits.biases);
    if (traits.qk_norm) {
      specs.push_back(VectorSpec(prefix + "self_attn.q_norm.weight", c.attention.head_dim));
      specs.push_back(VectorSpec(prefix + "self_attn.k_norm.weight", c.attention.head_dim));
    }
    specs.push_back(VectorSpec(prefix + "post_attention_layernorm.weight", c.hidden_dim));
    ListGatedMlp(specs, prefix + "mlp", c);
  }
  specs.push_back(VectorSpec("model.norm.weight", c.hidden_dim));
  if (!c.tied_embeddings) {
    specs.push_back(MatrixSpec("lm_head.weight", c.vocab_size, c.hidden_dim));
  }
  return specs;
}

std::vector<RopeSpec> ListLlamaRopes(const ModelConfig& c) {
  return {ScaledRope(c.attention.head_dim, c.rope_theta, c.rope_scaling)};
}

void LlamaForward(const ModelConfig& c, const LlamaTraits& traits, const Weights& weights,
                  LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Embed(embedding);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    x = Block(TakeLayer(w, c, traits), c, x, layer, ops);
  }
  const Act normed = ops.RmsNorm(x, w.Take(), c.norm_eps);
  ops.Logits(normed, c.tied_embeddings ? embedding : w.Take(), nullptr, 0);
  TANDEM_CHECK(w.at_end());
}

}  // namespace tandem::engine
