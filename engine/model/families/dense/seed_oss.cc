// Seed-OSS (ByteDance 2025), as transformers' SeedOssForCausalLM: Llama's blocks with biases of q,
// k and v, and of o where the config has them.

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

namespace tandem::engine::seed_oss {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"SeedOssForCausalLM", "seed_oss"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 155136,
                                .ffn_dim = 27648,
                                .n_layers = 64,
                                .n_heads = 80,
                                .n_kv_heads = 8,
                                .head_dim = 128,
                                .max_context_len = 524288,
                                .bos = {0},
                                .eos = {2}},
                               source);
  c.family = "seed_oss";
  c.attention_bias = JsonBoolOr(json, "attention_bias", true, source);
  c.attention_out_bias = JsonBoolOr(json, "attention_out_bias", false, source);
  c.mlp_bias = JsonBoolOr(json, "mlp_bias", false, source);
  c.dropout = ParseDropout(json, "residual_dropout", 0.1, source);
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "SeedOssForCausalLM", "seed_oss");
  json["attention_out_bias"] = c.attention_out_bias;
  json["mlp_bias"] = c.mlp_bias;
  json["residual_dropout"] = ShortestDouble(c.dropout);
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = {.qkv = c.attention_bias, .o = c.attention_out_bias}};
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention_bias = true;
}

constexpr auto kGgufParts = JoinGgufParts(kGgufAttentionParts, kGgufMlpParts,
                                          std::to_array<GgufPart>({
                                              {"attn_norm", "input_layernorm"},
                                              {"post_attention_norm", "post_attention_layernorm"},
                                          }));

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  json["hidden_act"] = "silu";
  json["attention_out_bias"] = false;
}

std::string RefuseOutBias(const ModelConfig& c) {
  return c.attention_out_bias ? "a bias of the attention's output" : "";
}

constexpr auto kGgufLimits = std::to_array<GgufLimit>(
    {RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu, RefuseMlpBias, RefuseOutBias});
constexpr GgufArchitecture kGguf{.name = "seed_oss",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "seed_oss",
    .models = "Seed-OSS",
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

}  // namespace tandem::engine::seed_oss
