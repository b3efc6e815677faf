// Command R7B and Command A (Cohere 2025), as transformers' Cohere2ForCausalLM: Command R's blocks,
// three layers with rope and a window before each layer that has neither.

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

namespace tandem::engine::cohere2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Cohere2ForCausalLM", "cohere2"};

constexpr int64_t kUsualPattern = 4;

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 256000,
                                .hidden_dim = 8192,
                                .ffn_dim = 22528,
                                .n_layers = 40,
                                .n_heads = 64,
                                .max_context_len = 8192,
                                .tied_embeddings = true,
                                .bos = {5},
                                .eos = {255001}},
                               source);
  c.family = "cohere2";
  ParseNormEps(json, "layer_norm_eps", 1e-5, c, source);
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.logit_multiplier =
      static_cast<float>(JsonNumberOr(json, "logit_scale", 0.0625, 1e-6, 1e6, source));
  const int64_t every =
      JsonIntOr(json, "sliding_window_pattern", kUsualPattern, 1, kMaxLayers, source);
  ParseWindowPattern(json, 4096, every, c, source);
  SkipRopeOnFullLayers(c);
  RequireBool(json, "use_parallel_block", true, source);
  RequireBool(json, "use_gated_activation", true, source);
  if (JsonNumberOr(json, "rotary_pct", 1, 0, 1, source) != 1) {
    ThrowUnsupported(source, "'rotary_pct' other than 1");
  }
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteLayerNormDecoder(c, "Cohere2ForCausalLM", "cohere2", "layer_norm_eps");
  json["attention_bias"] = c.attention_bias;
  json["logit_scale"] = ShortestDouble(c.logit_multiplier);
  WriteWindows(c, json);
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = EqualBiases(c),
          .norm = NormKind::kLayerWithoutBias,
          .norms = {.mlp_in = ""},
          .parallel = true};
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention_bias = true;
  c.logit_multiplier = 0.25f;
  c.tied_embeddings = true;
  WindowEveryOtherLayer(c);
  SkipRopeOnFullLayers(c);
}

constexpr GgufDecoderForm kGgufForm{.eps_key = kGgufLayerNormEps, .eps_field = "layer_norm_eps"};

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kGgufForm);
  json["logit_scale"] = Shortest(metadata.RequiredNumber("logit_scale"));
  json["sliding_window"] = metadata.RequiredInt(kGgufWindow);
  json["sliding_window_pattern"] = kUsualPattern;
  json["hidden_act"] = "silu";
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c, kGgufForm);
  AddGgufWindow(c, settings);
  settings.push_back({"logit_scale", c.logit_multiplier});
  settings.push_back({"rope.scaling.type", std::string_view("none")});
  return settings;
}

std::string RequireUsualPattern(const ModelConfig& c) {
  if (HasWindow(c) && FollowsPattern(c, kUsualPattern)) return "";
  return "an order of layers other than three windows before each full layer";
}

constexpr auto kGgufLimits = std::to_array<GgufLimit>(
    {RequireSilu, RequirePlainRope, RefuseAttentionBias, RequireTiedHead, RequireUsualPattern});
constexpr GgufArchitecture kGguf{.name = "cohere2",
                                 .parts = kGgufQwenParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "cohere2",
    .models = "Command R7B, Command A",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListInterleavedRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .lora = &kDecoderLoraNames,
};

}  // namespace tandem::engine::cohere2
