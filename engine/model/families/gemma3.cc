// Gemma 3, text (Gemma Team 2025), as transformers' Gemma3ForCausalLM: Gemma 2 without its caps,
// with norms on the heads of q and k, and five windowed layers with a rope of their own for each
// that sees everything. Of Gemma3ForConditionalGeneration the text part is read.

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/families.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kArchitectures{
    "Gemma3ForCausalLM", "gemma3_text", "Gemma3ForConditionalGeneration", "gemma3"};

constexpr double kLocalTheta = 10000, kGlobalTheta = 1000000;
// What Forward calls the two tables.
constexpr size_t kGlobalRope = 0, kLocalRope = 1;

// Two bases and one scaling, or one object per type of layer. The scaling is of the layers that see
// everything.
void ParseRopes(const Json& json, ModelConfig& c, const std::string& source) {
  const auto parameters = json.find("rope_parameters");
  if (parameters == json.end() || !parameters->is_object() ||
      !parameters->contains("full_attention")) {
    ParseRope(json, kGlobalTheta, c, source);
    c.local_rope_theta = JsonNumberOr(json, "rope_local_base_freq", kLocalTheta, 1, 1e12, source);
    return;
  }
  SetRope(ParseRopeObject((*parameters)["full_attention"], "full_attention", kGlobalTheta,
                          c.max_context_len, source),
          c);
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

// The text part of a model with eyes; what its file says outside of it, it says of the whole.
Json TextConfig(const Json& json, const std::string& source) {
  const auto text = json.find("text_config");
  if (text == json.end() || text->is_null()) return json;
  if (!text->is_object()) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field 'text_config' must be an object, got " + text->type_name());
  }
  Json merged = *text;
  for (const char* field :
       {"bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config"}) {
    if (json.contains(field) && !json[field].is_null()) merged[field] = json[field];
  }
  return merged;
}

ModelConfig ParseConfig(const Json& outer, const std::string& source) {
  const Json json = TextConfig(outer, source);
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 262208,
                                .hidden_dim = 2304,
                                .ffn_dim = 9216,
                                .n_layers = 26,
                                .n_heads = 8,
                                .n_kv_heads = 4,
                                .head_dim = 256,
                                .max_context_len = 131072,
                                .tied_embeddings = true,
                                .bos = {2},
                                .eos = {1}},
                               source);
  c.family = "gemma3";
  ParseRopes(json, c, source);
  c.activation = ParseActivation(json, "hidden_activation", "gelu_pytorch_tanh", source);
  const int64_t pattern = JsonIntOr(json, "sliding_window_pattern", 6, 1, kMaxLayers, source);
  const auto windowed = [=](int64_t layer) { return (layer + 1) % pattern != 0; };
  ParseGemmaAttention(json, {.windowed = windowed}, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Gemma3ForCausalLM", "gemma3_text");
  json["rope_local_base_freq"] = c.local_rope_theta;
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
    specs.push_back(OffsetNormSpec(prefix + "self_attn.q_norm.weight", c.attention.head_dim));
    specs.push_back(OffsetNormSpec(prefix + "self_attn.k_norm.weight", c.attention.head_dim));
    specs.push_back(OffsetNormSpec(prefix + "post_attention_layernorm.weight", c.hidden_dim));
    specs.push_back(OffsetNormSpec(prefix + "pre_feedforward_layernorm.weight", c.hidden_dim));
    ListGatedMlp(specs, prefix + "mlp", c);
    specs.push_back(OffsetNormSpec(prefix + "post_feedforward_layernorm.weight", c.hidden_dim));
  }
  specs.push_back(OffsetNormSpec("model.norm.weight", c.hidden_dim));
  if (!c.tied_embeddings) {
    specs.push_back(MatrixSpec("lm_head.weight", c.vocab_size, c.hidden_dim));
  }
  // Inside a model with eyes, as files of transformers before and after 4.52 name it.
  for (WeightSpec& spec : specs) {
    spec.aliases.push_back("language_model." + spec.name);
    if (spec.name.starts_with("model.")) {
      spec.aliases.push_back("model.language_model." + spec.name.substr(6));
    }
  }
  return specs;
}

std::vector<RopeSpec> ListRopes(const ModelConfig& c) {
  return {ScaledRope(c.attention.head_dim, c.rope_theta, c.rope_scaling),
          ScaledRope(c.attention.head_dim, c.local_rope_theta, {})};
}

struct Layer {
  const Weight& before_attn;
  SelfAttention attn;
  const Weight &q_norm, &k_norm, &after_attn, &before_mlp;
  GatedMlp mlp;
  const Weight& after_mlp;
};

// Braces evaluate in order, so the members are taken as ListWeights lists them.
Layer TakeLayer(WeightCursor& w, const ModelConfig& c) {
  return {w.Take(),           TakeSelfAttention(w, Biases(c)),
          w.Take(),           w.Take(),
          w.Take(),           w.Take(),
          TakeGatedMlp(w, c), w.Take()};
}

Act Block(const Layer& w, const ModelConfig& c, Act x, int64_t layer, LayerOps& ops) {
  const Act h = ops.RmsNorm(x, w.before_attn, c.norm_eps);
  const AttentionSpec attention = c.LayerAttention(layer);
  const size_t rope = attention.window > 0 ? kLocalRope : kGlobalRope;
  const Act q = ops.Rope(ops.RmsNormF32(Project(ops, h, w.attn.q), w.q_norm, c.norm_eps), rope);
  const Act k = ops.Rope(ops.RmsNormF32(Project(ops, h, w.attn.k), w.k_norm, c.norm_eps), rope);
  const Act v = Project(ops, h, w.attn.v);
  const Act attended = ops.Attention(q, k, v, attention, layer);
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

constinit const FamilySpec kGemma3Family{
    .name = "gemma3",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
};

}  // namespace tandem::engine
