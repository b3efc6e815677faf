// DeepSeek-V2 and V2-Lite (DeepSeek-AI 2024), as transformers' DeepseekV2ForCausalLM: latent
// attention; experts chosen by softmax, in V2 among those of the best groups.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/experts/latent_decoder.h"
#include "engine/model/families/experts/latent_gguf.h"
#include "engine/model/families/family.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::deepseek_v2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"DeepseekV2ForCausalLM", "deepseek_v2"};

void RefuseOthers(const Json& json, const std::string& source) {
  RequireBool(json, "mlp_bias", false, source);
  if (JsonBoolOr(json, "norm_topk_prob", false, source)) {
    ThrowUnsupported(source, "'norm_topk_prob': true, which transformers' class ignores");
  }
  RequireName(json, "scoring_func", "softmax", source);
}

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  RefuseOthers(json, source);
  ModelConfig c = ParseLatentDecoder(
      json,
      {.decoder = {.vocab_size = 102400, .max_context_len = 2048, .bos = {1}, .eos = {2}},
       .n_experts = 64,
       .expert_ffn_dim = 1407,
       .n_shared = 2},
      source);
  c.family = "deepseek_v2";
  const std::string method = JsonStringOr(json, "topk_method", "greedy", source);
  if (method == "group_limited_greedy") {
    ParseExpertGroups(json, 1, 1, c.experts.router, source);
  } else if (method != "greedy") {
    ThrowUnsupported(source, "'topk_method' " + Quoted(method) +
                                 "; supported are 'greedy' and 'group_limited_greedy'");
  }
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteLatentDecoder(c, "DeepseekV2ForCausalLM", "deepseek_v2");
  json["topk_method"] = c.experts.router.n_groups > 1 ? "group_limited_greedy" : "greedy";
  json["mlp_bias"] = false;
  return json;
}

void ShapeTiny(ModelConfig& c) { ShapeTinyLatent(c); }

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadLatentGguf(metadata, kGgufSoftmax, json);
  const bool has_groups = json["n_group"] > 1;
  json["topk_method"] = has_groups ? "group_limited_greedy" : "greedy";
}

constexpr GgufArchitecture kGguf{.name = kLatentGgufName,
                                 .parts = kLatentGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteLatentGguf,
                                 .limits = kLatentGgufLimits,
                                 .has_experts = true,
                                 .caveat = LatentGgufCaveat};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "deepseek_v2",
    .models = "DeepSeek-V2, V2-Lite",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLatentWeights,
    .list_ropes = ListLatentRopes,
    .forward = LatentForward,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .maxtext = &kLatentMaxText,
    .lora = &kLatentLoraNames,
};

}  // namespace tandem::engine::deepseek_v2
