// OLMo (Groeneveld et al. 2024), as transformers' OlmoForCausalLM: Llama's blocks with LayerNorms
// that have no parameters; some models limit q, k and v.

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

namespace tandem::engine::olmo {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"OlmoForCausalLM", "olmo"};

constexpr float kNormEps = 1e-5f;  // fixed in the class

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c =
      ParseDecoder(json, {.vocab_size = 50304, .max_context_len = 2048, .eos = {50279}}, source);
  c.family = "olmo";
  c.norm_eps = kNormEps;
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.clip_qkv = ParseCap(json, "clip_qkv", 0, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "OlmoForCausalLM", "olmo");
  json.erase("rms_norm_eps");
  json["clip_qkv"] = CapToJson(c.clip_qkv);
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = EqualBiases(c), .norm = NormKind::kLayerBare};
}

void ShapeTiny(ModelConfig& c) {
  c.norm_eps = kNormEps;
  c.attention.n_kv_heads = 2;
  c.clip_qkv = 0.5f;
}

constexpr auto kGgufParts = JoinGgufParts(kGgufPairedAttentionParts, kGgufMlpParts);
constexpr auto kGgufEnds = std::to_array<GgufPart>({
    {"token_embd", "model.embed_tokens"},
    {"output", "lm_head"},
});
constexpr GgufDecoderForm kGgufForm{.eps_key = kGgufLayerNormEps, .eps_field = "layer_norm_eps"};

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kGgufForm);
  if (static_cast<float>(json["layer_norm_eps"].get<double>()) != kNormEps) {
    metadata.Unsupported(kGgufForm.eps_key, "is not 1e-05, the only value of these models");
  }
  json.erase("layer_norm_eps");
  json["hidden_act"] = "silu";
  const double clip = metadata.Number("attention.clamp_kqv").value_or(0);
  json["clip_qkv"] = clip > 0 ? Json(Shortest(clip)) : Json(nullptr);
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c, kGgufForm);
  if (c.clip_qkv > 0) settings.push_back({"attention.clamp_kqv", c.clip_qkv});
  return settings;
}

constexpr auto kGgufLimits = std::to_array<GgufLimit>(
    {RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu, RefuseAttentionBias});
constexpr GgufArchitecture kGguf{.name = "olmo",
                                 .parts = kGgufParts,
                                 .ends = kGgufEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "olmo",
    .models = "OLMo",
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

}  // namespace tandem::engine::olmo
