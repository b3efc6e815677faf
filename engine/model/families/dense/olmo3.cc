// OLMo 3 (OLMo team 2025), as transformers' Olmo3ForCausalLM: OLMo 2 with a window on three of four
// layers. Rope scaling applies to the layers without a window.

#include <array>
#include <nlohmann/json.hpp>

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

namespace tandem::engine::olmo3 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Olmo3ForCausalLM", "olmo3"};

constexpr double kTheta = 500000;
constexpr int64_t kPattern = 4;  // every layer has a window except each fourth

// Tables of the layers without and with a window.
enum Table : int8_t { kFull, kWindowed };

void SetLayerRopes(ModelConfig& c) {
  c.layer_ropes.clear();
  for (const bool windowed : WindowedLayers(c)) {
    c.layer_ropes.push_back(windowed ? kWindowed : kFull);
  }
}

// One object per layer type, or one base and one scaling.
void ParseRopes(const Json& json, ModelConfig& c, const std::string& source) {
  const auto parameters = json.find("rope_parameters");
  const bool by_type =
      parameters != json.end() && parameters->is_object() &&
      (parameters->contains("full_attention") || parameters->contains("sliding_attention"));
  if (!by_type) {
    ParseRope(json, kTheta, c, source);
    c.local_rope_theta = c.rope_theta;
    return;
  }
  const auto parse = [&](const char* type) {
    const auto object = parameters->find(type);
    if (object == parameters->end() || object->is_null())
      return RopeConfig{.theta = kTheta, .scaling = {}};
    return ParseRopeObject(*object, type, kTheta, c.max_context_len, source);
  };
  SetRope(parse("full_attention"), c, source);
  const RopeConfig windowed = parse("sliding_attention");
  if (windowed.scaling.kind != RopeKind::kPlain) {
    ThrowUnsupported(source, "rope scaling of 'sliding_attention' layers");
  }
  c.local_rope_theta = windowed.theta;
}

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(
      json, {.vocab_size = 50304, .max_context_len = 2048, .norm_eps = 1e-5, .eos = {50279}},
      source);
  c.family = "olmo3";
  ParseRopes(json, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  ParseWindowPattern(json, 4096, kPattern, c, source);
  SetLayerRopes(c);
  return c;
}

// Both spellings: transformers 4 reads the first, transformers 5 the second.
Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Olmo3ForCausalLM", "olmo3");
  Json full = RopeScalingToJson(c.rope_scaling);
  if (full.is_null()) full = Json{{"rope_type", "default"}};
  full["rope_theta"] = c.rope_theta;
  json["rope_parameters"] = {
      {"full_attention", full},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", c.local_rope_theta}}}};
  WriteWindows(c, json);
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = EqualBiases(c), .qk_norm = QkNorm::kWidth, .norms = kNormsAfter};
}

std::vector<RopeSpec> ListRopes(const ModelConfig& c) {
  return {ScaledRope(c.attention.head_dim, c.rope_theta, c.rope_scaling),
          ScaledRope(c.attention.head_dim, c.local_rope_theta, RopeScaling{})};
}

void ShapeTiny(ModelConfig& c) {
  c.n_layers = 3;
  c.attention.n_kv_heads = 2;
  WindowEveryOtherLayer(c);
  SetLayerRopes(c);
  c.rope_theta = c.local_rope_theta = kTheta;
  c.rope_scaling = {.kind = RopeKind::kLinear, .factor = 8};
}

// GGUF files have OLMo 2's architecture; the window tells them apart.
bool OwnsGguf(const GgufMetadata& metadata) { return metadata.Int(kGgufWindow).value_or(0) > 0; }

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  json["hidden_act"] = "silu";
  ReadGgufWindows(metadata, json);
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c);
  AddGgufWindowsByLayer(c, settings);
  return settings;
}

std::string RequireWindow(const ModelConfig& c) {
  return HasWindow(c) ? "" : "no layer with a sliding window";
}

std::string RequireOneTheta(const ModelConfig& c) {
  return c.rope_theta == c.local_rope_theta ? "" : "two values of 'rope_theta'";
}

constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu,
                              RefuseAttentionBias, RequireWindow, RequireOneTheta});
constexpr GgufArchitecture kGguf{.name = "olmo2",
                                 .parts = kGgufNormsAfterParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits,
                                 .owns = OwnsGguf};

constexpr std::array kMaxTextLayer{
    MaxTextRule{"model.layers.{}.self_attn.q_proj.weight", "attention.query.kernel",
                MaxTextShape::kHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.k_proj.weight", "attention.key.kernel",
                MaxTextShape::kHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.v_proj.weight", "attention.value.kernel",
                MaxTextShape::kHeadsOut},
    MaxTextRule{"model.layers.{}.self_attn.o_proj.weight", "attention.out.kernel",
                MaxTextShape::kHeadsIn},
    MaxTextRule{"model.layers.{}.self_attn.q_norm.weight", "attention.query_norm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.self_attn.k_norm.weight", "attention.key_norm.scale",
                MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.post_attention_layernorm.weight",
                "post_self_attention_layer_norm.scale", MaxTextShape::kVector},
    MaxTextRule{"model.layers.{}.post_feedforward_layernorm.weight", "post_mlp_layer_norm.scale",
                MaxTextShape::kVector}};
constexpr std::array kMaxTextRules =
    JoinRules(kMaxTextTablesAndTwoNorms, kMaxTextLayer, kMaxTextMlp);
constexpr MaxTextTree kMaxText{.rules = kMaxTextRules,
                               .blocks = MaxTextBlocks::kCycle,
                               .cycle = kPattern,
                               .window_period = kPattern};
constexpr LoraNames kLora{
    .rules = kMaxTextRules, .blocks = MaxTextBlocks::kCycle, .cycle = kPattern};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "olmo3",
    .models = "OLMo 3",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .maxtext = &kMaxText,
    .lora = &kLora,
};

}  // namespace tandem::engine::olmo3
