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
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"

namespace tandem::engine::granitemoe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"GraniteMoeForCausalLM", "granitemoe"};

constexpr ExpertKeys kKeys{.count = "num_local_experts",
                           .other_count = "num_experts",
                           .ffn = "intermediate_size",
                           .n_experts = 8,
                           .n_chosen = 2,
                           .ffn_dim = 11008};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json, {.max_context_len = 2048, .bos = {1}, .eos = {2}}, source);
  c.family = "granitemoe";
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  ParseGraniteMultipliers(json, c, source);
  c.experts = ParseExperts(json, kKeys, source);
  c.experts.router.normalise = false;  // not a key of this class
  c.experts.router.softmax_of_chosen = true;
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "GraniteMoeForCausalLM", "granitemoe");
  WriteGraniteMultipliers(c, json);
  WriteExperts(c, kKeys, json);
  json.erase("norm_topk_prob");
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = EqualBiases(c),
          .experts = {.router = "block_sparse_moe.router.layer.weight",
                      .experts = "block_sparse_moe.experts"}};
}

// Each projection of each expert is a part of the layer's stacked tensors.
std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs = ListLlamaWeights(c, Traits(c));
  for (WeightSpec& spec : specs) {
    const size_t at = spec.name.find("experts.");
    if (at == std::string::npos) continue;
    const std::string layer = spec.name.substr(0, at);
    const bool is_down = spec.name.ends_with("down_proj.weight");
    const bool is_up = spec.name.ends_with("up_proj.weight");
    spec.parts = {{.tensor = layer + (is_down ? "output_linear.weight" : "input_linear.weight"),
                   .index = std::stoll(spec.name.substr(at + std::string("experts.").size())),
                   .first_row = is_up ? c.experts.ffn_dim : 0}};
  }
  return specs;
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention.scale = 0.125f;
  c.embedding_multiplier = 12;
  c.residual_multiplier = 0.22f;
  c.logit_multiplier = 0.25f;
  ShapeTinyExperts(c);
  c.experts.router.softmax_of_chosen = true;
  c.ffn_dim = c.experts.ffn_dim;
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  ReadGgufExperts(metadata, kKeys.count, json);
  json[kKeys.ffn] = metadata.RequiredInt("expert_feed_forward_length");
  json["hidden_act"] = "silu";
  ReadGgufMultipliers(metadata, json);
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = WriteGgufDecoder(c);
  AddGgufExperts(c, settings);
  AddGgufMultipliers(c, settings);
  return settings;
}

constexpr auto kGgufParts =
    JoinGgufParts(kGgufPairedAttentionParts, kGgufTwoNormParts,
                  std::to_array<GgufPart>({
                      {"ffn_gate_inp", "block_sparse_moe.router.layer"},
                      {"ffn_gate_exps", "block_sparse_moe.experts.{E}.gate_proj"},
                      {"ffn_up_exps", "block_sparse_moe.experts.{E}.up_proj"},
                      {"ffn_down_exps", "block_sparse_moe.experts.{E}.down_proj"},
                  }));
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
