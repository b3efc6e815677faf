// GPT-NeoX and Pythia (Black et al. 2022, Biderman et al. 2023), as transformers'
// GPTNeoXForCausalLM. Attention and a GELU MLP read norms of their own of the block's input. q, k
// and v lie together for each head, a part of which has rope.

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"

namespace tandem::engine::gpt_neox {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"GPTNeoXForCausalLM", "gpt_neox"};

// This class has keys of its own for rope.
Json WithRopeKeys(Json json) {
  for (const auto& [own, shared] : {std::pair{"rotary_emb_base", "rope_theta"},
                                    std::pair{"rotary_pct", "partial_rotary_factor"}}) {
    if (json.contains(own) && !json.contains(shared)) json[shared] = json[own];
  }
  return json;
}

ModelConfig ParseConfig(const Json& given, const std::string& source) {
  const Json json = WithRopeKeys(given);
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 50432,
                                .hidden_dim = 6144,
                                .ffn_dim = 24576,
                                .n_layers = 44,
                                .n_heads = 64,
                                .max_context_len = 2048,
                                .bos = {0},
                                .eos = {2}},
                               source);
  c.family = "gpt_neox";
  RequireKeysOfEachHead(c, "num_attention_heads", "hidden_size", source);
  ParseNormEps(json, "layer_norm_eps", 1e-5, c, source);
  ParseRope(json, RopeRules{.partial = true, .rotary_factor = 0.25}, c, source);
  c.activation = ParseActivation(json, "hidden_act", "gelu", source);
  c.attention_bias = JsonBoolOr(json, "attention_bias", true, source);
  c.mlp_bias = true;
  c.parallel_residual = JsonBoolOr(json, "use_parallel_residual", true, source);
  c.dropout = ParseDropout(json, "hidden_dropout", 0, source);
  c.embedding_dropout = c.dropout;
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteLayerNormDecoder(c, "GPTNeoXForCausalLM", "gpt_neox", "layer_norm_eps");
  for (const char* field : {"num_key_value_heads", "head_dim", "rope_theta"}) json.erase(field);
  json["rotary_emb_base"] = c.rope_theta;
  json["rotary_pct"] = RotaryFactor(c.rotary_dim, c.attention.head_dim);
  json["attention_bias"] = c.attention_bias;
  json["use_parallel_residual"] = c.parallel_residual;
  json["hidden_dropout"] = ShortestDouble(c.dropout);
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  LlamaTraits traits{.biases = EqualBiases(c),
                     .fused_qkv = true,
                     .qkv_by_head = true,
                     .norm = NormKind::kLayer,
                     .mlp = MlpKind::kPlain,
                     .parallel = c.parallel_residual};
  traits.names.embedding = "gpt_neox.embed_in";
  traits.names.layers = "gpt_neox.layers.";
  traits.names.norm = "gpt_neox.final_layer_norm";
  traits.names.head = "embed_out";
  traits.names.attention = "attention.";
  traits.names.qkv = "query_key_value";
  traits.names.o = "dense";
  traits.names.up = "dense_h_to_4h";
  traits.names.down = "dense_4h_to_h";
  return traits;
}

void ShapeTiny(ModelConfig& c) {
  c.rotary_dim = 4;
  c.activation = Activation::kGelu;
  c.attention_bias = c.mlp_bias = c.parallel_residual = true;
  c.dropout = c.embedding_dropout = 0.1f;
}

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "gpt_neox",
    .models = "GPT-NeoX, Pythia",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
};

}  // namespace tandem::engine::gpt_neox
