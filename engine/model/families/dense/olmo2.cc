// OLMo 2 (OLMo team 2024), as transformers' Olmo2ForCausalLM: each branch of a block ends in an
// RMSNorm instead of beginning with one, and q and k have norms over the whole width.

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

namespace tandem::engine::olmo2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Olmo2ForCausalLM", "olmo2"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(
      json, {.vocab_size = 50304, .max_context_len = 2048, .norm_eps = 1e-5, .eos = {50279}},
      source);
  c.family = "olmo2";
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  return c;
}

Json WriteConfig(const ModelConfig& c) { return WriteDecoder(c, "Olmo2ForCausalLM", "olmo2"); }

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = EqualBiases(c), .qk_norm = QkNorm::kWidth, .norms = kNormsAfter};
}

void ShapeTiny(ModelConfig& c) { c.attention.n_kv_heads = 2; }

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  json["hidden_act"] = "silu";
}

constexpr auto kGgufLimits = std::to_array<GgufLimit>(
    {RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu, RefuseAttentionBias});
constexpr GgufArchitecture kGguf{.name = "olmo2",
                                 .parts = kGgufNormsAfterParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "olmo2",
    .models = "OLMo 2",
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

}  // namespace tandem::engine::olmo2
