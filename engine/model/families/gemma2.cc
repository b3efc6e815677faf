// Gemma 2 (Gemma Team 2024), as transformers' Gemma2ForCausalLM: Gemma with a norm after attention
// and MLP as well as before, soft caps on scores and logits, and a sliding window on every other
// layer.

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/families.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Gemma2ForCausalLM", "gemma2"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 256000,
                                .hidden_dim = 2304,
                                .ffn_dim = 9216,
                                .n_layers = 26,
                                .n_heads = 8,
                                .n_kv_heads = 4,
                                .head_dim = 256,
                                .max_context_len = 8192,
                                .tied_embeddings = true,
                                .bos = {2},
                                .eos = {1}},
                               source);
  c.family = "gemma2";
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_activation", "gelu_pytorch_tanh", source);
  const auto windowed = [](int64_t layer) { return layer % 2 == 0; };
  ParseGemmaAttention(json, {.attention_cap = 50, .logit_cap = 30, .windowed = windowed}, c,
                      source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Gemma2ForCausalLM", "gemma2");
  WriteGemmaAttention(c, json);
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
    specs.push_back(OffsetNormSpec(prefix + "input_layernorm.weight", c.hidden_dim));
    ListSelfAttention(specs, prefix + "self_attn", c, Biases(c));
    specs.push_back(OffsetNormSpec(prefix + "post_attention_layernorm.weight", c.hidden_dim));
    specs.push_back(OffsetNormSpec(prefix + "pre_feedforward_layernorm.weight", c.hidden_dim));
    ListGatedMlp(specs, prefix + "mlp", c);
    specs.push_back(OffsetNormSpec(prefix + "post_feedforward_layernorm.weight", c.hidden_dim));
  }
  specs.push_back(OffsetNormSpec("model.norm.weight", c.hidden_dim));
  if (!c.tied_embeddings) {
    specs.push_back(MatrixSpec("lm_head.weight", c.vocab_size, c.hidden_dim));
  }
  return specs;
}

std::vector<RopeSpec> ListRopes(const ModelConfig& c) {
  return {ScaledRope(c.attention.head_dim, c.rope_theta, c.rope_scaling)};
}

struct Layer {
  const Weight& before_attn;
  SelfAttention attn;
  const Weight &after_attn, &before_mlp;
  GatedMlp mlp;
  const Weight& after_mlp;
};

// Braces evaluate in order, so the members are taken as ListWeights lists them.
Layer TakeLayer(WeightCursor& w, const ModelConfig& c) {
  return {w.Take(), TakeSelfAttention(w, Biases(c)), w.Take(), w.Take(), TakeGatedMlp(w, c),
          w.Take()};
}

Act Block(const Layer& w, const ModelConfig& c, Act x, int64_t layer, LayerOps& ops) {
  const Act h = ops.RmsNorm(x, w.before_attn, c.norm_eps);
  const Act q = ops.Rope(Project(ops, h, w.attn.q), 0);
  const Act k = ops.Rope(Project(ops, h, w.attn.k), 0);
  const Act v = Project(ops, h, w.attn.v);
  const Act attended = ops.Attention(q, k, v, c.LayerAttention(layer), layer);
  const Act a = ops.RmsNormF32(Project(ops, attended, w.attn.o), w.after_attn, c.norm_eps);
  x = ops.Add(x, ops.Dropout(a, c.dropout));
  const Act m = RunGatedMlp(ops, ops.RmsNorm(x, w.before_mlp, c.norm_eps), w.mlp, c);
  return ops.Add(x, ops.Dropout(ops.RmsNormF32(m, w.after_mlp, c.norm_eps), c.dropout));
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Scale(ops.Embed(embedding), std::sqrt(static_cast<float>(c.hidden_dim)));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    x = Block(TakeLayer(w, c), c, x, layer, ops);
  }
  const Act normed = ops.RmsNorm(x, w.Take(), c.norm_eps);
  ops.Logits(normed, c.tied_embeddings ? embedding : w.Take(), nullptr, c.logit_cap);
  TANDEM_CHECK(w.at_end());
}

}  // namespace

constinit const FamilySpec kGemma2Family{
    .name = "gemma2",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
};

}  // namespace tandem::engine
