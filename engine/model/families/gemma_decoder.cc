#include "engine/model/families/gemma_decoder.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"

namespace tandem::engine {
namespace {

// In the order of ListGemmaRopes.
constexpr size_t kGlobalRope = 0, kLocalRope = 1;
constexpr double kLocalTheta = 10000, kGlobalTheta = 1000000;

using Json = nlohmann::ordered_json;

struct Layer {
  const Weight& before_attn;
  SelfAttention attn;
  const Weight *q_norm, *k_norm;  // null without qk_norm
  const Weight* after_attn;       // null without output_norms
  const Weight& before_mlp;
  GatedMlp mlp;
  const Weight* after_mlp;  // null without output_norms
};

const Weight* TakeIf(bool has, WeightCursor& w) { return has ? &w.Take() : nullptr; }

// Braced initialisers evaluate in order, so members are taken in the order of ListGemmaWeights.
Layer TakeLayer(WeightCursor& w, const ModelConfig& c, const GemmaTraits& traits) {
  return {w.Take(),
          TakeSelfAttention(w, EqualBiases(c)),
          TakeIf(traits.qk_norm, w),
          TakeIf(traits.qk_norm, w),
          TakeIf(traits.output_norms, w),
          w.Take(),
          TakeGatedMlp(w, c),
          TakeIf(traits.output_norms, w)};
}

Act NormIf(LayerOps& ops, Act x, const Weight* norm, const ModelConfig& c) {
  return norm == nullptr ? x : ops.RmsNormF32(x, *norm, c.norm_eps);
}

Act Block(const Layer& w, const ModelConfig& c, const GemmaTraits& traits, Act x, int64_t layer,
          LayerOps& ops) {
  const AttentionSpec attention = c.LayerAttention(layer);
  const size_t rope = traits.local_rope && attention.window > 0 ? kLocalRope : kGlobalRope;
  const Act h = ops.RmsNorm(x, w.before_attn, c.norm_eps);  // [rows, hidden_dim]
  // q: [rows, n_heads * head_dim]; k, v: [rows, n_kv_heads * head_dim]
  const Act q = ops.Rope(NormIf(ops, Project(ops, h, w.attn.q), w.q_norm, c), rope);
  const Act k = ops.Rope(NormIf(ops, Project(ops, h, w.attn.k), w.k_norm, c), rope);
  const Act v = Project(ops, h, w.attn.v);
  const Act attended = ops.Attention(q, k, v, attention, layer);
  const Act a = NormIf(ops, Project(ops, attended, w.attn.o), w.after_attn, c);
  x = ops.Add(x, ops.Dropout(a, c.dropout));
  const Act m = RunGatedMlp(ops, ops.RmsNorm(x, w.before_mlp, c.norm_eps), w.mlp, c);
  return ops.Add(x, ops.Dropout(NormIf(ops, m, w.after_mlp, c), c.dropout));
}

}  // namespace

void ParseGemmaRopes(const Json& json, ModelConfig& c, const std::string& source) {
  const auto parameters = json.find("rope_parameters");
  if (parameters == json.end() || !parameters->is_object() ||
      !parameters->contains("full_attention")) {
    ParseRope(json, kGlobalTheta, c, source);
    c.local_rope_theta = JsonNumberOr(json, "rope_local_base_freq", kLocalTheta, 1, 1e12, source);
    return;
  }
  SetRope(ParseRopeObject((*parameters)["full_attention"], "full_attention", kGlobalTheta,
                          c.max_context_len, source),
          c, source);
  c.local_rope_theta = kLocalTheta;
  if (!parameters->contains("sliding_attention")) return;
  const RopeConfig sliding =
      ParseRopeObject((*parameters)["sliding_attention"], "sliding_attention", kLocalTheta,
                      c.max_context_len, source);
  if (sliding.scaling.kind != RopeKind::kPlain) {
    ThrowUnsupported(source, "rope scaling of 'sliding_attention' layers");
  }
  c.local_rope_theta = sliding.theta;
}

std::vector<WeightSpec> ListGemmaWeights(const ModelConfig& c, const GemmaTraits& traits) {
  std::vector<WeightSpec> specs;
  const auto norm = [&](const std::string& name, int64_t n) {
    specs.push_back(OffsetNormSpec(name + ".weight", n));
  };
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, c.hidden_dim));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    norm(prefix + "input_layernorm", c.hidden_dim);
    ListSelfAttention(specs, prefix + "self_attn", c, EqualBiases(c));
    if (traits.qk_norm) {
      norm(prefix + "self_attn.q_norm", c.attention.head_dim);
      norm(prefix + "self_attn.k_norm", c.attention.head_dim);
    }
    norm(prefix + "post_attention_layernorm", c.hidden_dim);
    // Without output norms, the name above is the norm before the MLP.
    if (traits.output_norms) norm(prefix + "pre_feedforward_layernorm", c.hidden_dim);
    ListGatedMlp(specs, prefix + "mlp", c);
    if (traits.output_norms) norm(prefix + "post_feedforward_layernorm", c.hidden_dim);
  }
  ListHead(specs, OffsetNormSpec("model.norm.weight", c.hidden_dim), c);
  return specs;
}

std::vector<RopeSpec> ListGemmaRopes(const ModelConfig& c, const GemmaTraits& traits) {
  std::vector<RopeSpec> ropes;
  ropes.push_back(ScaledRope(c.attention.head_dim, c.rope_theta, c.rope_scaling));
  if (traits.local_rope) {
    ropes.push_back(ScaledRope(c.attention.head_dim, c.local_rope_theta, {}));
  }
  return ropes;
}

void GemmaForward(const ModelConfig& c, const GemmaTraits& traits, const Weights& weights,
                  LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Scale(ops.Embed(embedding), std::sqrt(static_cast<float>(c.hidden_dim)));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    x = Block(TakeLayer(w, c, traits), c, traits, x, layer, ops);
  }
  RunHead(ops, w, embedding, c, x);
}

void ShapeTinyGemma(ModelConfig& c, int64_t n_kv_heads) {
  c.attention.n_kv_heads = n_kv_heads;
  c.norm_eps = 1e-6f;
  c.activation = Activation::kGeluTanh;
  c.tied_embeddings = true;
  c.query_scalar = static_cast<double>(c.attention.head_dim);
}

}  // namespace tandem::engine
