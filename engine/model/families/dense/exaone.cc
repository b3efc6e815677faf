// EXAONE 3 and 3.5 (LG AI Research 2024), as the code beside its weights: Llama's blocks under
// names of its own.

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

namespace tandem::engine::exaone {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"ExaoneForCausalLM", "exaone"};

ModelConfig ParseConfig(const Json& given, const std::string& source) {
  Json json = given;
  if (json.contains("num_layers")) json["num_hidden_layers"] = json["num_layers"];
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 102400,
                                .hidden_dim = 2048,
                                .ffn_dim = 8192,
                                .max_context_len = 2048,
                                .tied_embeddings = true,
                                .bos = {0},
                                .eos = {2}},
                               source);
  c.family = "exaone";
  ParseNormEps(json, "layer_norm_epsilon", 1e-5, c, source);
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "activation_function", "silu", source);
  c.embedding_dropout = ParseDropout(json, "embed_dropout", 0, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteLayerNormDecoder(c, "ExaoneForCausalLM", "exaone", "layer_norm_epsilon");
  json.erase("num_hidden_layers");
  json.erase("hidden_act");
  json["num_layers"] = c.n_layers;
  json["activation_function"] = ActivationName(c.activation);
  json["embed_dropout"] = ShortestDouble(c.embedding_dropout);
  return json;
}

LlamaTraits Traits(const ModelConfig&) {
  LlamaTraits traits;
  traits.norms = {.attention_in = "ln_1", .mlp_in = "ln_2"};
  traits.names.embedding = "transformer.wte";
  traits.names.layers = "transformer.h.";
  traits.names.norm = "transformer.ln_f";
  traits.names.attention = "attn.attention.";
  traits.names.o = "out_proj";
  traits.names.gate = "c_fc_0";
  traits.names.up = "c_fc_1";
  traits.names.down = "c_proj";
  return traits;
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.embedding_dropout = 0.1f;
}

constexpr GgufDecoderForm kGgufForm{.eps_field = "layer_norm_epsilon", .bias_field = nullptr};

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kGgufForm);
  json["activation_function"] = "silu";
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) { return GgufDecoderSizes(c, kGgufForm); }

constexpr auto kGgufParts = std::to_array<GgufPart>({
    {"attn_norm", "ln_1"},
    {"attn_q", "attn.attention.q_proj"},
    {"attn_k", "attn.attention.k_proj"},
    {"attn_v", "attn.attention.v_proj"},
    {"attn_output", "attn.attention.out_proj"},
    {"ffn_norm", "ln_2"},
    {"ffn_gate", "mlp.c_fc_0"},
    {"ffn_up", "mlp.c_fc_1"},
    {"ffn_down", "mlp.c_proj"},
});
constexpr auto kGgufEnds = std::to_array<GgufPart>({
    {"token_embd", "transformer.wte"},
    {"output_norm", "transformer.ln_f"},
    {"output", "lm_head"},
});
constexpr auto kGgufLimits = std::to_array<GgufLimit>({RequireSilu, RefuseUntruncatedYarn});
constexpr GgufArchitecture kGguf{.name = "exaone",
                                 .parts = kGgufParts,
                                 .ends = kGgufEnds,
                                 .block = "transformer.h.",
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "exaone",
    .models = "EXAONE 3, 3.5",
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

}  // namespace tandem::engine::exaone
