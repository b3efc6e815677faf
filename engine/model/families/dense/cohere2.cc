// Command R7B and Command A (Cohere 2025), as transformers' Cohere2ForCausalLM: Command R's blocks,
// three layers with rope and a window before each layer that has neither.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/dense/cohere_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::cohere2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Cohere2ForCausalLM", "cohere2"};

constexpr int64_t kUsualPattern = 4;

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseCohere(json, 10000, source);
  c.family = "cohere2";
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
  Json json = WriteCohere(c, "Cohere2ForCausalLM", "cohere2");
  WriteWindows(c, json);
  return json;
}

void ShapeTiny(ModelConfig& c) {
  ShapeTinyCohere(c);
  WindowEveryOtherLayer(c);
  SkipRopeOnFullLayers(c);
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadCohereGguf(metadata, json);
  json["sliding_window"] = metadata.RequiredInt(kGgufWindow);
  json["sliding_window_pattern"] = kUsualPattern;
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
                                 .write_config = WriteCohereGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "cohere2",
    .models = "Command R7B, Command A",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<CohereTraits>,
    .list_ropes = ListInterleavedRopes,
    .forward = LlamaForward<CohereTraits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .lora = &kDecoderLoraNames,
};

}  // namespace tandem::engine::cohere2
