// Granite 3 with experts (IBM 2024), as transformers' GraniteMoeForCausalLM: Granite's multipliers;
// checkpoints stack the experts of a layer, gates above ups.

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/model/families/expert_gguf.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/granite_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/llama_decoder.h"

namespace tandem::engine::granitemoe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"GraniteMoeForCausalLM", "granitemoe"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseGranite(json, source);
  c.family = "granitemoe";
  ParseGraniteExperts(json, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "GraniteMoeForCausalLM", "granitemoe");
  WriteGraniteMultipliers(c, json);
  WriteExperts(c, kGraniteExpertKeys, json);
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = EqualBiases(c), .experts = kGraniteExperts};
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs = ListLlamaWeights(c, Traits(c));
  AddGraniteStacks(c, specs);
  return specs;
}

void ShapeTiny(ModelConfig& c) {
  ShapeTinyGranite(c);
  ShapeTinyGraniteExperts(c);
  c.ffn_dim = c.experts.ffn_dim;
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  ReadGgufExperts(metadata, kGraniteExpertKeys, json);
  ReadGgufExpertWidths(metadata, kGraniteExpertKeys, json);
  json["hidden_act"] = "silu";
  ReadGgufMultipliers(metadata, json);
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = WriteGgufExpertDecoder(c);
  AddGgufMultipliers(c, settings);
  return settings;
}

constexpr auto kGgufParts =
    JoinGgufParts(kGgufPairedAttentionParts, kGgufTwoNormParts, kGgufGraniteExpertParts);
constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseUntruncatedYarn, RequireSilu, RefuseAttentionBias});
constexpr GgufArchitecture kGguf{.name = "granitemoe",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits,
                                 .has_experts = true};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "granitemoe",
    .models = "Granite 3 with experts",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
};

}  // namespace tandem::engine::granitemoe
