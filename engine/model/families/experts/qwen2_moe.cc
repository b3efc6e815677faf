// Qwen2 with experts (Yang et al. 2024: Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B), as transformers'
// Qwen2MoeForCausalLM: Qwen2's attention; a shared expert behind a gate beside the chosen ones.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/expert_gguf.h"
#include "engine/model/families/expert_parts.h"
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
#include "engine/model/families/qwen_parts.h"

namespace tandem::engine::qwen2_moe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Qwen2MoeForCausalLM", "qwen2_moe"};

constexpr ExpertKeys kKeys{.shared_ffn = "shared_expert_intermediate_size",
                           .n_experts = 60,
                           .n_chosen = 4,
                           .ffn_dim = 1408,
                           .shared_ffn_dim = 5632};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 151936,
                                .hidden_dim = 2048,
                                .ffn_dim = 5632,
                                .n_layers = 24,
                                .n_heads = 16,
                                .n_kv_heads = 16,
                                .max_context_len = 32768},
                               source);
  c.family = "qwen2_moe";
  c.attention_bias = JsonBoolOr(json, "qkv_bias", true, source);
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.attention.window = ParseUsedWindow(json, 4096, source);
  const int64_t end = JsonIntOr(json, "max_window_layers", 28, 0, kMaxLayers, source);
  ParseLayerTypes(
      json, [=](int64_t layer) { return layer % 2 == 0 && layer < end; }, c, source);
  c.experts = ParseExperts(json, kKeys, source);
  ParseSparseLayers(json, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Qwen2MoeForCausalLM", "qwen2_moe");
  json.erase("attention_bias");
  json["qkv_bias"] = c.attention_bias;
  WriteQwenWindows(c, json);
  WriteExperts(c, kKeys, json);
  WriteSparseLayers(c, json);
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {
      .biases = {.qkv = c.attention_bias},
      .experts = {.shared = "mlp.shared_expert", .shared_gate = "mlp.shared_expert_gate.weight"}};
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention_bias = true;
  ShapeTinyExperts(c);
  c.experts.shared_ffn_dim = 36;
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  ReadGgufExperts(metadata, kKeys, json);
  ReadGgufExpertWidths(metadata, kKeys, json);
  json["hidden_act"] = "silu";
  json["qkv_bias"] = true;
  json["norm_topk_prob"] = false;
  json["use_sliding_window"] = false;
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = WriteGgufDecoder(c);
  AddGgufSharedExperts(c, settings);
  return settings;
}

std::string RequireQkvBias(const ModelConfig& c) {
  return c.attention_bias ? "" : "'qkv_bias': false";
}

constexpr auto kGgufParts = JoinGgufParts(kGgufAttentionParts, kGgufTwoNormParts, kGgufRouterParts,
                                          kGgufExpertParts, kGgufGatedExpertParts);
constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu, RequireQkvBias,
                              RefuseWindow, RefuseDenseLayers, RefuseNormalisedExperts});
constexpr GgufArchitecture kGguf{.name = "qwen2moe",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits,
                                 .has_experts = true};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "qwen2_moe",
    .models = "Qwen1.5 and Qwen2 with experts",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .lora = &kExpertLoraNames,
};

}  // namespace tandem::engine::qwen2_moe
