// Qwen3.5 and 3.6 with experts, the text models (Qwen Team 2026), as transformers'
// Qwen3_5MoeForCausalLM: Qwen3.5 with experts and a gated shared one in every layer.

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hybrid/delta_decoder.h"
#include "engine/model/families/hybrid/delta_gguf.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/text_part.h"

namespace tandem::engine::qwen3_5_moe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kArchitectures{
    "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "Qwen3_5MoeForConditionalGeneration",
    "qwen3_5_moe"};

constexpr DeltaTraits kTraits{};
constexpr ExpertKeys kKeys{.shared_ffn = "shared_expert_intermediate_size",
                           .n_experts = 256,
                           .n_chosen = 8,
                           .normalise = true,
                           .fixes_norm = true,
                           .ffn_dim = 512,
                           .shared_ffn_dim = 512};

ModelConfig ParseConfig(const Json& outer, const std::string& source) {
  const Json json = TextConfig(outer, source);
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 248320,
                                .hidden_dim = 2048,
                                .ffn_dim = 512,
                                .n_layers = 40,
                                .n_heads = 16,
                                .n_kv_heads = 2,
                                .head_dim = 256,
                                .max_context_len = 32768},
                               source);
  c.family = "qwen3_5_moe";
  ParseDelta(json, c, source);
  c.experts = ParseExperts(json, kKeys, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text");
  WriteDelta(c, json);
  WriteExperts(c, kKeys, json);
  return json;
}

constexpr std::string_view kModel = "model.";

// Published checkpoints stack the experts of a layer: gate_up_proj [n_experts, 2 * ffn_dim, hidden]
// and down_proj [n_experts, hidden, ffn_dim].
void AddStackedExperts(const ModelConfig& c, std::vector<WeightSpec>& specs) {
  for (WeightSpec& spec : specs) {
    auto part = StackedPart(spec, {}, c);
    if (!part) continue;
    part->is_written = false;
    spec.parts.push_back(*part);
    part->tensor = "model.language_model." + part->tensor.substr(kModel.size());
    spec.parts.push_back(*std::move(part));
  }
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs = ListDeltaDecoder(c, kTraits);
  AddMultimodalNames(specs);
  AddStackedExperts(c, specs);
  return specs;
}

void ShapeTiny(ModelConfig& c) { ShapeTinyDeltaExperts(c); }

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadDeltaGguf(metadata, json);
  ReadGgufExperts(metadata, kKeys, json);
  ReadGgufExpertWidths(metadata, kKeys, json);
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = WriteSectionedDeltaGguf(c);
  AddGgufSharedExperts(c, settings);
  return settings;
}

constexpr auto kGgufParts =
    JoinGgufParts(kDeltaGgufParts, kTiledDeltaGgufParts, kDeltaExpertGgufParts);
constexpr GgufArchitecture kGguf{.name = "qwen35moe",
                                 .parts = kGgufParts,
                                 .ends = kGgufOffsetNormEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kDeltaExpertGgufLimits,
                                 .has_experts = true};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "qwen3_5_moe",
    .models = "Qwen3.5, 3.6 with experts",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListLlamaRopes,
    .forward = DeltaDecoderForward<kTraits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
};

}  // namespace tandem::engine::qwen3_5_moe
