// Bamba (IBM, Princeton, CMU and UIUC 2024), as transformers' BambaForCausalLM: Mamba-2 in most
// layers, attention of which half a head rotates in some, a gated MLP in all.

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/hybrid/mamba_parts.h"
#include "engine/model/families/llama_decoder.h"

namespace tandem::engine::bamba {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"BambaForCausalLM", "bamba"};
constexpr MambaKeys kKeys{};

// The class fixes the share of a head that rotates, whatever the file states.
Json WithoutRotaryShare(Json json) {
  json.erase("partial_rotary_factor");
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (json.contains(name) && json[name].is_object()) json[name].erase("partial_rotary_factor");
  }
  return json;
}

// Sets the recurrent layers: all that `attn_layer_indices` does not name.
void ParseLayers(const Json& json, ModelConfig& c, const std::string& source) {
  c.recurrent.layers.assign(static_cast<size_t>(c.n_layers), true);
  const auto attention = ParseLayerNumbers(json, "attn_layer_indices", c.n_layers - 1, source);
  for (const int64_t layer : attention.value_or(std::vector<int64_t>())) {
    c.recurrent.layers[static_cast<size_t>(layer)] = false;
  }
}

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 128000,
                                .ffn_dim = 14336,
                                .n_kv_heads = 8,
                                .max_context_len = 262144,
                                .norm_eps = 1e-5,
                                .bos = {1},
                                .eos = {2}},
                               source);
  c.family = "bamba";
  ParseRope(WithoutRotaryShare(json), {.theta = 10000, .partial = true, .rotary_factor = 0.5}, c,
            source);
  c.activation = Activation::kSilu;
  RequireMambaSilu(json, "hidden_act", source);
  c.mlp_bias = JsonBoolOr(json, "mlp_bias", false, source);
  ParseMamba(json, kKeys, c, source);
  ParseLayers(json, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "BambaForCausalLM", "bamba");
  json["mlp_bias"] = c.mlp_bias;
  json["partial_rotary_factor"] = 0.5;
  WriteMamba(c, kKeys, json);
  json["attn_layer_indices"] = Json::array();
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    if (!c.IsRecurrent(layer)) json["attn_layer_indices"].push_back(layer);
  }
  return json;
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, c.hidden_dim));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    specs.push_back(VectorSpec(prefix + "input_layernorm.weight", c.hidden_dim));
    if (c.IsRecurrent(layer)) {
      ListMamba(specs, prefix + "mamba.", c);
    } else {
      ListSelfAttention(specs, prefix + "self_attn", c, EqualBiases(c));
    }
    specs.push_back(VectorSpec(prefix + "pre_ff_layernorm.weight", c.hidden_dim));
    ListGatedMlp(specs, prefix + "feed_forward", c);
  }
  ListHead(specs, VectorSpec("model.final_layernorm.weight", c.hidden_dim), c);
  return specs;
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Embed(embedding);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const Act h = ops.RmsNorm(x, w.Take(), c.norm_eps);
    x = ops.Add(x, c.IsRecurrent(layer)
                       ? RunMamba(ops, w, c, h)
                       : RunSelfAttention(ops, TakeSelfAttention(w, EqualBiases(c)), c, h, layer));
    const Act m = ops.RmsNorm(x, w.Take(), c.norm_eps);
    x = ops.Add(x, RunGatedMlp(ops, m, TakeGatedMlp(w, c), c));
  }
  RunHead(ops, w, embedding, c, x);
}

void ShapeTiny(ModelConfig& c) {
  c.n_layers = 3;
  c.attention.n_kv_heads = 2;
  c.rotary_dim = 6;
  c.attention_bias = true;
  c.mlp_bias = true;
  ShapeTinyMamba(c);
  c.recurrent.in_bias = c.recurrent.out_bias = true;
  c.recurrent.layers = {true, false, true};
}

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "bamba",
    .models = "Bamba",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListLlamaRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
};

}  // namespace tandem::engine::bamba
