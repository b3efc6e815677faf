// InternLM 3 (Shanghai AI Laboratory 2025), as its own code and transformers' InternLM3: Llama's
// blocks, with one switch for the biases of q, k and v and one for all others.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::internlm3 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"InternLM3ForCausalLM", "internlm3"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 128512,
                                .ffn_dim = 10240,
                                .n_layers = 48,
                                .n_kv_heads = 2,
                                .head_dim = 128,
                                .max_context_len = 32768,
                                .norm_eps = 1e-5,
                                .bos = {1},
                                .eos = {2}},
                               source);
  c.family = "internlm3";
  ParseRope(json, RopeRules{.has_dynamic = true}, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  // transformers saves both under the names of Llama's class.
  c.attention_bias = JsonBoolOr(json, "qkv_bias", c.attention_bias, source);
  c.mlp_bias = JsonBoolOr(json, "bias", JsonBoolOr(json, "mlp_bias", false, source), source);
  c.attention_out_bias = c.mlp_bias;
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "InternLM3ForCausalLM", "internlm3");
  json.erase("attention_bias");
  json["qkv_bias"] = c.attention_bias;
  json["bias"] = c.mlp_bias;
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = {.qkv = c.attention_bias, .o = c.attention_out_bias}};
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention_bias = c.attention_out_bias = c.mlp_bias = true;
}

// GGUF files of InternLM 3 have Llama's architecture, and are read as Llama.
bool OwnsGguf(const GgufMetadata&) { return false; }

void ReadGguf(const GgufMetadata& metadata, Json& json) { ReadGgufDecoder(metadata, json); }

std::string RequireEqualBiases(const ModelConfig& c) {
  return c.attention_bias == c.attention_out_bias ? "" : "'qkv_bias' other than 'bias'";
}

constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseUntruncatedYarn, RequireSilu, RequireEqualBiases});
constexpr GgufArchitecture kGguf{.name = "llama",
                                 .parts = kGgufLlamaParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGgufLimits,
                                 .owns = OwnsGguf};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "internlm3",
    .models = "InternLM 3",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .lora = &kDecoderLoraNames,
};

}  // namespace tandem::engine::internlm3
