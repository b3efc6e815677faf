// Granite 3 and 4, the dense models (IBM 2024), as transformers' GraniteForCausalLM: Llama's blocks
// with multipliers of embeddings, scores, residuals and logits.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/granite_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::granite {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"GraniteForCausalLM", "granite"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseGranite(json, source);
  c.family = "granite";
  c.mlp_bias = JsonBoolOr(json, "mlp_bias", false, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "GraniteForCausalLM", "granite");
  json["mlp_bias"] = c.mlp_bias;
  WriteGraniteMultipliers(c, json);
  return json;
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufLlama(metadata, json);
  ReadGgufMultipliers(metadata, json);
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = WriteGgufDecoder(c);
  AddGgufMultipliers(c, settings);
  return settings;
}

constexpr std::array<GgufLimit, 2> kGgufLimits{RefuseUntruncatedYarn, RequireSilu};
constexpr GgufArchitecture kGguf{.name = "granite",
                                 .parts = kGgufLlamaParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "granite",
    .models = "Granite 3, 4 (dense)",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<PlainTraits>,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<PlainTraits>,
    .shape_tiny = ShapeTinyGranite,
    .gguf = &kGguf,
    .lora = &kDecoderLoraNames,
};

}  // namespace tandem::engine::granite
