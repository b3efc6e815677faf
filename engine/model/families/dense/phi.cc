// Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al. 2023), as transformers' PhiForCausalLM: attention and
// a GELU MLP of one LayerNorm, both added; biases everywhere, rope on a part of each head.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::phi {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"PhiForCausalLM", "phi"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 51200,
                                .hidden_dim = 2048,
                                .ffn_dim = 8192,
                                .n_layers = 24,
                                .max_context_len = 2048,
                                .bos = {1},
                                .eos = {2}},
                               source);
  c.family = "phi";
  ParseNormEps(json, "layer_norm_eps", 1e-5, c, source);
  ParseRope(json, RopeRules{.partial = true, .rotary_factor = 0.5}, c, source);
  c.activation = ParseActivation(json, "hidden_act", "gelu_new", source);
  c.attention_bias = c.mlp_bias = true;
  c.dropout = ParseDropout(json, "resid_pdrop", 0, source);
  c.embedding_dropout = ParseDropout(json, "embd_pdrop", 0, source);
  // A LayerNorm of heads would need an op of its own.
  RequireBool(json, "qk_layernorm", false, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteLayerNormDecoder(c, "PhiForCausalLM", "phi", "layer_norm_eps");
  json["partial_rotary_factor"] = RotaryFactor(c.rotary_dim, c.attention.head_dim);
  json["resid_pdrop"] = ShortestDouble(c.dropout);
  json["embd_pdrop"] = ShortestDouble(c.embedding_dropout);
  json["qk_layernorm"] = false;
  return json;
}

LlamaTraits Traits(const ModelConfig&) {
  LlamaTraits traits{.biases = {.qkv = true, .o = true},
                     .norm = NormKind::kLayer,
                     .norms = {.mlp_in = ""},
                     .mlp = MlpKind::kPlain,
                     .parallel = true,
                     .head_bias = true};
  traits.names.norm = "model.final_layernorm";
  traits.names.o = "dense";
  traits.names.up = "fc1";
  traits.names.down = "fc2";
  return traits;
}

void ShapeTiny(ModelConfig& c) {
  c.rotary_dim = 4;
  c.activation = Activation::kGeluTanh;
  c.attention_bias = c.mlp_bias = true;
  c.dropout = c.embedding_dropout = 0.1f;
}

constexpr GgufDecoderForm kGgufForm{.partial_rope = true,
                                    .eps_key = kGgufLayerNormEps,
                                    .eps_field = "layer_norm_eps",
                                    .bias_field = nullptr};

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kGgufForm);
  json["hidden_act"] = "gelu_new";
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) { return GgufDecoderSizes(c, kGgufForm); }

constexpr auto kGgufParts = std::to_array<GgufPart>({
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.dense"},
    {"ffn_up", "mlp.fc1"},
    {"ffn_down", "mlp.fc2"},
});
constexpr auto kGgufEnds = std::to_array<GgufPart>({
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.final_layernorm"},
    {"output", "lm_head"},
});
constexpr auto kGgufLimits = std::to_array<GgufLimit>({RequireTanhGelu, RequirePlainRope});
constexpr GgufArchitecture kGguf{.name = "phi2",
                                 .parts = kGgufParts,
                                 .ends = kGgufEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "phi",
    .models = "Phi-1, Phi-1.5, Phi-2",
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

}  // namespace tandem::engine::phi
