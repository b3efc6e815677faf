// Command R and Aya (Cohere 2024), as transformers' CohereForCausalLM: attention and a gated MLP of
// one LayerNorm without bias, both added; rope on neighbouring dimensions, scaled logits.

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/dense/cohere_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::cohere {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"CohereForCausalLM", "cohere"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseCohere(json, 500000, source);
  c.family = "cohere";
  // config.json of the first models states 8192 positions beside their real length.
  c.max_context_len =
      std::max(c.max_context_len, JsonIntOr(json, "model_max_length", 1, 1, kMaxContext, source));
  // A scale and a mean for each head would need an op of its own.
  RequireBool(json, "use_qk_norm", false, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteCohere(c, "CohereForCausalLM", "cohere");
  json["use_qk_norm"] = false;
  return json;
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadCohereGguf(metadata, json);
  json["use_qk_norm"] = metadata.HasTensor("blk.0.attn_q_norm.weight");
}

constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RequireSilu, RequirePlainRope, RefuseAttentionBias, RequireTiedHead});
constexpr GgufArchitecture kGguf{.name = "command-r",
                                 .parts = kGgufQwenParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteCohereGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "cohere",
    .models = "Command R, Aya",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<CohereTraits>,
    .list_ropes = ListInterleavedRopes,
    .forward = LlamaForward<CohereTraits>,
    .shape_tiny = ShapeTinyCohere,
    .gguf = &kGguf,
    .lora = &kDecoderLoraNames,
};

}  // namespace tandem::engine::cohere
