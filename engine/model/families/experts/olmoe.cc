// OLMoE (Muennighoff et al. 2024), as transformers' OlmoeForCausalLM: norms over all heads of q and
// k together, experts in every layer.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/model/families/expert_gguf.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::olmoe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"OlmoeForCausalLM", "olmoe"};

constexpr ExpertKeys kKeys{
    .ffn = "intermediate_size", .n_experts = 64, .n_chosen = 8, .ffn_dim = 2048, .aux_loss = 0.01};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 50304,
                                .hidden_dim = 2048,
                                .ffn_dim = 2048,
                                .n_layers = 16,
                                .n_heads = 16,
                                .max_context_len = 4096,
                                .norm_eps = 1e-5,
                                .eos = {50279}},
                               source);
  c.family = "olmoe";
  if (IsGiven(json, "clip_qkv")) ThrowUnsupported(source, "'clip_qkv'");
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.experts = ParseExperts(json, kKeys, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "OlmoeForCausalLM", "olmoe");
  WriteExperts(c, kKeys, json);
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = EqualBiases(c), .qk_norm = QkNorm::kWidth};
}

void ShapeTiny(ModelConfig& c) {
  ShapeTinyExperts(c);
  c.ffn_dim = c.experts.ffn_dim;
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  ReadGgufExperts(metadata, kKeys, json);
  json["norm_topk_prob"] = false;
}

constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu,
                              RefuseAttentionBias, RefuseNormalisedExperts});
constexpr GgufArchitecture kGguf{.name = "olmoe",
                                 .parts = kGgufNormedExpertParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufExpertDecoder,
                                 .limits = kGgufLimits,
                                 .has_experts = true};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "olmoe",
    .models = "OLMoE",
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

}  // namespace tandem::engine::olmoe
