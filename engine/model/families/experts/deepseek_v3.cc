// DeepSeek-V3 and R1 (DeepSeek-AI 2024), as transformers' DeepseekV3ForCausalLM: V2's latent
// attention; experts chosen by sigmoid plus a stored bias that training does not change. The layers
// that predict further tokens are not read.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/experts/latent_decoder.h"
#include "engine/model/families/experts/latent_gguf.h"
#include "engine/model/families/family.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::deepseek_v3 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"DeepseekV3ForCausalLM", "deepseek_v3"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  RequireName(json, "scoring_func", "sigmoid", source);
  RequireName(json, "topk_method", "noaux_tc", source);
  ModelConfig c = ParseLatentDecoder(json,
                                     {.decoder = {.vocab_size = 129280,
                                                  .hidden_dim = 7168,
                                                  .ffn_dim = 18432,
                                                  .n_layers = 61,
                                                  .n_heads = 128,
                                                  .n_kv_heads = 128,
                                                  .max_context_len = 4096,
                                                  .bos = {0},
                                                  .eos = {1}},
                                      .n_experts = 256,
                                      .top_k = 8,
                                      .expert_ffn_dim = 2048,
                                      .n_dense_layers = 3,
                                      .routed_scale = 2.5,
                                      .normalise = true},
                                     source);
  c.family = "deepseek_v3";
  c.latent.interleaved = JsonBoolOr(json, "rope_interleave", true, source);
  UseBiasedRouter(c.experts);
  ParseExpertGroups(json, 8, 4, c.experts.router, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteLatentDecoder(c, "DeepseekV3ForCausalLM", "deepseek_v3");
  json["rope_interleave"] = c.latent.interleaved;
  json["num_nextn_predict_layers"] = 0;
  return json;
}

void ShapeTiny(ModelConfig& c) {
  ShapeTinyLatent(c);
  UseBiasedRouter(c.experts);
  c.experts.router.normalise = true;
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadLatentGguf(metadata, kGgufSigmoid, json);
  json["rope_interleave"] = true;
}

// The first files of this architecture had no score and were DeepSeek-V2's.
bool OwnsGguf(const GgufMetadata& metadata) {
  return GgufScore(metadata, kGgufSoftmax) == kGgufSigmoid;
}

constexpr GgufArchitecture kGguf{.name = kLatentGgufName,
                                 .parts = kLatentGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteLatentGguf,
                                 .limits = kLatentGgufLimits,
                                 .has_experts = true,
                                 .owns = OwnsGguf,
                                 .caveat = LatentGgufCaveat};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "deepseek_v3",
    .models = "DeepSeek-V3, R1",
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

}  // namespace tandem::engine::deepseek_v3
