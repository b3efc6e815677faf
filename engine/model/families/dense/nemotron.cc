// Nemotron and Minitron (Parmar et al. 2024), as transformers' NemotronForCausalLM: Llama's blocks
// with LayerNorms whose scale is stored minus 1, a squared ReLU without gate, and rope on half of
// each head.

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

namespace tandem::engine::nemotron {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"NemotronForCausalLM", "nemotron"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 256000,
                                .hidden_dim = 6144,
                                .ffn_dim = 24576,
                                .n_heads = 48,
                                .max_context_len = 4096,
                                .bos = {2},
                                .eos = {3}},
                               source);
  c.family = "nemotron";
  ParseNormEps(json, "norm_eps", 1e-5, c, source);
  ParseRope(json, RopeRules{.partial = true, .rotary_factor = 0.5}, c, source);
  c.activation = ParseActivation(json, "hidden_act", "relu2", source);
  c.mlp_bias = JsonBoolOr(json, "mlp_bias", false, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteLayerNormDecoder(c, "NemotronForCausalLM", "nemotron", "norm_eps");
  json["attention_bias"] = c.attention_bias;
  json["mlp_bias"] = c.mlp_bias;
  json["partial_rotary_factor"] = RotaryFactor(c.rotary_dim, c.attention.head_dim);
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = EqualBiases(c), .norm = NormKind::kLayerOffset, .mlp = MlpKind::kPlain};
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.rotary_dim = 6;
  c.activation = Activation::kRelu2;
  c.attention_bias = c.mlp_bias = true;
}

constexpr GgufDecoderForm kGgufForm{
    .partial_rope = true, .eps_key = kGgufLayerNormEps, .eps_field = "norm_eps"};

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kGgufForm);
  json["mlp_bias"] = metadata.HasTensor("blk.0.ffn_up.bias");
  json["hidden_act"] = "relu2";
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) { return GgufDecoderSizes(c, kGgufForm); }

constexpr auto kGgufParts =
    JoinGgufParts(kGgufAttentionParts, kGgufPlainMlpParts,
                  std::to_array<GgufPart>({
                      {"attn_norm", "input_layernorm", GgufChange::kPlus1},
                      {"ffn_norm", "post_attention_layernorm", GgufChange::kPlus1},
                  }));
constexpr auto kGgufLimits = std::to_array<GgufLimit>({RequireSquaredRelu, RequirePlainRope});
constexpr GgufArchitecture kGguf{.name = "nemotron",
                                 .parts = kGgufParts,
                                 .ends = kGgufOffsetNormEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "nemotron",
    .models = "Nemotron, Minitron",
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

}  // namespace tandem::engine::nemotron
