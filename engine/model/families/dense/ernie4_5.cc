// ERNIE 4.5, the dense models (Baidu 2025), as transformers' Ernie4_5ForCausalLM: Llama's blocks
// with rope on neighbouring dimensions.

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

namespace tandem::engine::ernie4_5 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 3> kArchitectures{"Ernie4_5ForCausalLM", "ernie4_5",
                                                         "Ernie4_5_ForCausalLM"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 103424,
                                .hidden_dim = 1024,
                                .ffn_dim = 3072,
                                .n_layers = 18,
                                .n_heads = 16,
                                .n_kv_heads = 2,
                                .head_dim = 128,
                                .max_context_len = 131072,
                                .norm_eps = 1e-5,
                                .tied_embeddings = true,
                                .bos = {1},
                                .eos = {2}},
                               source);
  c.family = "ernie4_5";
  ParseRope(json, 500000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.attention_bias = c.mlp_bias = JsonBoolOr(json, "use_bias", false, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Ernie4_5ForCausalLM", "ernie4_5");
  json.erase("attention_bias");
  json["use_bias"] = c.attention_bias;
  return json;
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention_bias = c.mlp_bias = true;
  c.tied_embeddings = true;
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, {.bias_field = "use_bias"});
  json["hidden_act"] = "silu";
}

constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RequireSilu, RequirePlainRope, RefuseAttentionBias});
constexpr GgufArchitecture kGguf{.name = "ernie4_5",
                                 .parts = kGgufQwenParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "ernie4_5",
    .models = "ERNIE 4.5 (dense)",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<PlainTraits>,
    .list_ropes = ListInterleavedRopes,
    .forward = LlamaForward<PlainTraits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .lora = &kDecoderLoraNames,
};

}  // namespace tandem::engine::ernie4_5
