// Qwen3 with experts (Yang et al. 2025: 30B-A3B, 235B-A22B, Coder), as transformers'
// Qwen3MoeForCausalLM: Qwen3's attention, and experts without a shared one in most layers.

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
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::qwen3_moe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Qwen3MoeForCausalLM", "qwen3_moe"};

constexpr ExpertKeys kKeys{.n_experts = 128, .n_chosen = 8, .ffn_dim = 768};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 151936,
                                .hidden_dim = 2048,
                                .ffn_dim = 6144,
                                .n_layers = 24,
                                .n_kv_heads = 4,
                                .max_context_len = 32768},
                               source);
  c.family = "qwen3_moe";
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  // Unlike the dense class, a window holds on every layer.
  c.attention.window = ParseUsedWindow(json, 4096, source);
  c.experts = ParseExperts(json, kKeys, source);
  ParseSparseLayers(json, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Qwen3MoeForCausalLM", "qwen3_moe");
  WriteUsedWindow(c, json);
  WriteExperts(c, kKeys, json);
  WriteSparseLayers(c, json);
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = EqualBiases(c), .qk_norm = QkNorm::kHeads};
}

constexpr std::string_view kModel = "model.";

// The text part of Qwen3-VL stacks the experts of a layer with the inputs first:
// gate_up_proj [n_experts, hidden, 2 * ffn_dim] and down_proj [n_experts, ffn_dim, hidden].
std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs = ListLlamaWeights(c, Traits(c));
  for (WeightSpec& spec : specs) {
    auto part = StackedPart(spec, {}, c);
    if (!part) continue;
    part->tensor = "model.language_model." + part->tensor.substr(kModel.size());
    part->transposed = true;
    part->is_written = false;
    spec.parts.push_back(*std::move(part));
  }
  return specs;
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  ShapeTinyExperts(c);
  c.experts.router.normalise = true;
  c.experts.layers.assign(static_cast<size_t>(c.n_layers), true);
  c.experts.layers.front() = false;
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  ReadGgufExperts(metadata, kKeys, json);
  ReadGgufExpertWidths(metadata, kKeys, json);
  json["norm_topk_prob"] = true;
  json["use_sliding_window"] = false;
}

constexpr auto kGgufLimits = std::to_array<GgufLimit>(
    {RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu, RefuseAttentionBias, RefuseWindow,
     RefuseDenseLayers, RequireNormalisedExperts});
constexpr GgufArchitecture kGguf{.name = "qwen3moe",
                                 .parts = kGgufNormedExpertParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufExpertDecoder,
                                 .limits = kGgufLimits,
                                 .has_experts = true};

// MaxText has no layers without experts in this model.
constexpr std::array kMaxTextRules =
    JoinRules(kMaxTextTablesAndTwoNorms, kMaxTextQueryAndKey, kMaxTextValueAndOut,
              kMaxTextHeadNorms, kMaxTextMoeBlock);
constexpr MaxTextTree kMaxText{.rules = kMaxTextRules, .caveat = MaxTextHasNoWindow};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "qwen3_moe",
    .models = "Qwen3 with experts, Qwen3-Coder",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .maxtext = &kMaxText,
    .lora = &kExpertLoraNames,
};

}  // namespace tandem::engine::qwen3_moe
