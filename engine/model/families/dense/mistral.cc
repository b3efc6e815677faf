// Mistral (Jiang et al. 2023), as transformers' MistralForCausalLM: Llama's blocks; the first
// models have a sliding window on every layer.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/model/families/decoder_parts.h"
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

namespace tandem::engine::mistral {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"MistralForCausalLM", "mistral"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(
      json, {.ffn_dim = 14336, .n_kv_heads = 8, .max_context_len = 131072, .bos = {1}, .eos = {2}},
      source);
  c.family = "mistral";
  c.attention_bias = false;  // not a key of this class
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.attention.window = ParseWindow(json, 4096, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "MistralForCausalLM", "mistral");
  json.erase("attention_bias");
  json["sliding_window"] = WindowToJson(c);
  return json;
}

LlamaTraits Traits(const ModelConfig&) { return {}; }

void ShapeTiny(ModelConfig& c) { c.attention.window = kTinyWindow; }

// GGUF files of Mistral have Llama's architecture. A window tells them apart; those without one
// compute as Llama does.

bool OwnsGguf(const GgufMetadata& metadata) { return metadata.Int(kGgufWindow).value_or(0) > 0; }

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufLlama(metadata, json);
  json["sliding_window"] = metadata.RequiredInt(kGgufWindow);
}

constexpr std::array<GgufLimit, 2> kGgufLimits{RefuseUntruncatedYarn, RequireSilu};
constexpr GgufArchitecture kGguf{.name = "llama",
                                 .parts = kGgufLlamaParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGgufLimits,
                                 .owns = OwnsGguf,
                                 .caveat = IgnoredWindowCaveat};

// MaxText's q and k keep Hugging Face's order of dimensions.
constexpr std::array kMaxTextRules = JoinRules(kMaxTextTablesAndTwoNorms, kMaxTextScaledQueryAndKey,
                                               kMaxTextValueAndOut, kMaxTextMlp);
constexpr MaxTextTree kMaxText{.rules = kMaxTextRules, .caveat = MaxTextHasNoWindow};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "mistral",
    .models = "Mistral 7B, NeMo",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .maxtext = &kMaxText,
    .lora = &kDecoderLoraNames,
};

}  // namespace tandem::engine::mistral
