// Qwen3, the dense models (Yang et al. 2025), as transformers' Qwen3ForCausalLM: Llama's blocks
// with an RMSNorm on every head of q and k before rotation.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"
#include "engine/model/families/qwen_parts.h"

namespace tandem::engine::qwen3 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Qwen3ForCausalLM", "qwen3"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDenseQwen(json, 128, source);
  c.family = "qwen3";
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Qwen3ForCausalLM", "qwen3");
  WriteQwenWindows(c, json);
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = EqualBiases(c), .qk_norm = QkNorm::kHeads};
}

void ShapeTiny(ModelConfig& c) { c.attention.n_kv_heads = 2; }

constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu, RefuseMlpBias,
                              RefuseAttentionBias, RefuseWindow});
constexpr GgufArchitecture kGguf{.name = "qwen3",
                                 .parts = kGgufQwenParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadQwenGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGgufLimits};

constexpr std::array kMaxTextRules = JoinRules(kMaxTextTablesAndTwoNorms, kMaxTextQueryAndKey,
                                               kMaxTextValueAndOut, kMaxTextHeadNorms, kMaxTextMlp);
constexpr MaxTextTree kMaxText{.rules = kMaxTextRules, .caveat = MaxTextHasNoWindow};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "qwen3",
    .models = "Qwen3",
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

}  // namespace tandem::engine::qwen3
