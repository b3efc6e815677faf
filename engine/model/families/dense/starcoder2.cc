// StarCoder 2 (Lozhkov et al. 2024), as transformers' Starcoder2ForCausalLM: Llama's blocks with
// LayerNorms, biases, a GELU MLP without gate, and a window on every layer.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::starcoder2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Starcoder2ForCausalLM", "starcoder2"};

constexpr TokenId kEndOfText = 50256;

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 49152,
                                .hidden_dim = 3072,
                                .ffn_dim = 12288,
                                .n_layers = 30,
                                .n_heads = 24,
                                .n_kv_heads = 2,
                                .max_context_len = 4096,
                                .tied_embeddings = true,
                                .bos = {kEndOfText},
                                .eos = {kEndOfText}},
                               source);
  c.family = "starcoder2";
  ParseNormEps(json, "norm_epsilon", 1e-5, c, source);
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "gelu_pytorch_tanh", source);
  c.attention_bias = c.mlp_bias = JsonBoolOr(json, "use_bias", true, source);
  c.attention.window = ParseWindow(json, 0, source);
  c.dropout = ParseDropout(json, "residual_dropout", 0, source);
  c.embedding_dropout = ParseDropout(json, "embedding_dropout", 0, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteLayerNormDecoder(c, "Starcoder2ForCausalLM", "starcoder2", "norm_epsilon");
  json["use_bias"] = c.attention_bias;
  json["sliding_window"] = WindowToJson(c);
  json["residual_dropout"] = ShortestDouble(c.dropout);
  json["embedding_dropout"] = ShortestDouble(c.embedding_dropout);
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  LlamaTraits traits{.biases = EqualBiases(c), .norm = NormKind::kLayer, .mlp = MlpKind::kPlain};
  traits.names.up = "c_fc";
  traits.names.down = "c_proj";
  return traits;
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention.window = kTinyWindow;
  c.activation = Activation::kGeluTanh;
  c.attention_bias = c.mlp_bias = true;
  c.tied_embeddings = true;
  c.dropout = c.embedding_dropout = 0.1f;
}

constexpr GgufDecoderForm kGgufForm{
    .eps_key = kGgufLayerNormEps, .eps_field = "norm_epsilon", .bias_field = "use_bias"};

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kGgufForm);
  ReadGgufWindow(metadata, json);
  json["hidden_act"] = "gelu_pytorch_tanh";
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c, kGgufForm);
  AddGgufWindow(c, settings);
  return settings;
}

constexpr auto kGgufParts = JoinGgufParts(kGgufAttentionParts, kGgufTwoNormParts,
                                          std::to_array<GgufPart>({
                                              {"ffn_up", "mlp.c_fc"},
                                              {"ffn_down", "mlp.c_proj"},
                                          }));
constexpr auto kGgufLimits = std::to_array<GgufLimit>({RequireTanhGelu, RequirePlainRope});
constexpr GgufArchitecture kGguf{.name = "starcoder2",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits,
                                 .caveat = IgnoredWindowCaveat};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "starcoder2",
    .models = "StarCoder 2",
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

}  // namespace tandem::engine::starcoder2
