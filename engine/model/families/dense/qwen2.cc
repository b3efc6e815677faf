// Qwen2 and Qwen2.5 (Yang et al. 2024), as transformers' Qwen2ForCausalLM: Llama's blocks with
// biases on q, k and v. Most files state a sliding window, and few use it.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"
#include "engine/model/families/qwen_parts.h"

namespace tandem::engine::qwen2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Qwen2ForCausalLM", "qwen2"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDenseQwen(json, 0, source);
  c.family = "qwen2";
  c.attention_bias = false;  // not a key of this class: q, k and v always have one, o never
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Qwen2ForCausalLM", "qwen2");
  json.erase("attention_bias");
  WriteQwenWindows(c, json);
  return json;
}

LlamaTraits Traits(const ModelConfig&) { return {.biases = {.qkv = true, .o = false}}; }

void ShapeTiny(ModelConfig& c) { WindowEveryOtherLayer(c); }

std::string RequireHeadsOfTheWidth(const ModelConfig& c) {
  if (c.attention.n_heads * c.attention.head_dim == c.hidden_dim) return "";
  return "heads that together are not as wide as the model";
}

constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu, RefuseMlpBias,
                              RequireHeadsOfTheWidth, RefuseWindow});
constexpr GgufArchitecture kGguf{.name = "qwen2",
                                 .parts = kGgufQwenParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadQwenGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGgufLimits};

constexpr std::array kMaxTextRules = JoinRules(kMaxTextTablesAndTwoNorms, kMaxTextQueryAndKey,
                                               kMaxTextValueAndOut, kMaxTextQkvBiases, kMaxTextMlp);
constexpr MaxTextTree kMaxText{.rules = kMaxTextRules, .caveat = MaxTextHasNoWindow};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "qwen2",
    .models = "Qwen2, Qwen2.5",
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

}  // namespace tandem::engine::qwen2
