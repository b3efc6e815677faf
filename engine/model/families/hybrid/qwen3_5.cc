// Qwen3.5 and 3.6, the dense text models (Qwen Team 2026), as transformers' Qwen3_5ForCausalLM:
// gated DeltaNets, and gated attention in every fourth layer. Only the text part of multimodal
// checkpoints is read.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hybrid/delta_decoder.h"
#include "engine/model/families/hybrid/delta_gguf.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/text_part.h"

namespace tandem::engine::qwen3_5 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kArchitectures{
    "Qwen3_5ForCausalLM", "qwen3_5_text", "Qwen3_5ForConditionalGeneration", "qwen3_5"};

constexpr DeltaTraits kTraits{};

ModelConfig ParseConfig(const Json& outer, const std::string& source) {
  const Json json = TextConfig(outer, source);
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 248320,
                                .hidden_dim = 4096,
                                .ffn_dim = 12288,
                                .n_layers = 32,
                                .n_heads = 16,
                                .n_kv_heads = 4,
                                .head_dim = 256,
                                .max_context_len = 32768},
                               source);
  c.family = "qwen3_5";
  ParseDelta(json, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Qwen3_5ForCausalLM", "qwen3_5_text");
  WriteDelta(c, json);
  return json;
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs = ListDeltaDecoder(c, kTraits);
  AddMultimodalNames(specs);
  return specs;
}

constexpr auto kGgufParts = JoinGgufParts(kDeltaGgufParts, kTiledDeltaGgufParts, kGgufMlpParts);
constexpr GgufArchitecture kGguf{.name = "qwen35",
                                 .parts = kGgufParts,
                                 .ends = kGgufOffsetNormEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadDeltaGguf,
                                 .write_config = WriteSectionedDeltaGguf,
                                 .limits = kDeltaGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "qwen3_5",
    .models = "Qwen3.5, 3.6 (dense)",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListLlamaRopes,
    .forward = DeltaDecoderForward<kTraits>,
    .shape_tiny = ShapeTinyDelta,
    .gguf = &kGguf,
};

}  // namespace tandem::engine::qwen3_5
