// Arcee's AFM (Arcee 2025), as transformers' ArceeForCausalLM: Llama's blocks with an MLP without a
// gate and a squared ReLU.

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

namespace tandem::engine::arcee {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"ArceeForCausalLM", "arcee"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.hidden_dim = 2560,
                                .ffn_dim = 18432,
                                .max_context_len = 4096,
                                .norm_eps = 1e-5,
                                .bos = {128000},
                                .eos = {128001}},
                               source);
  c.family = "arcee";
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "relu2", source);
  c.mlp_bias = JsonBoolOr(json, "mlp_bias", false, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "ArceeForCausalLM", "arcee");
  json["mlp_bias"] = c.mlp_bias;
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = EqualBiases(c), .mlp = MlpKind::kPlain};
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.activation = Activation::kRelu2;
}

constexpr auto kGgufParts =
    JoinGgufParts(kGgufPairedAttentionParts, kGgufTwoNormParts, kGgufPlainMlpParts);

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  json["hidden_act"] = "relu2";
}

constexpr auto kGgufLimits = std::to_array<GgufLimit>(
    {RefuseUntruncatedYarn, RequireSquaredRelu, RefuseMlpBias, RefuseAttentionBias});
constexpr GgufArchitecture kGguf{.name = "arcee",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "arcee",
    .models = "Arcee AFM",
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

}  // namespace tandem::engine::arcee
