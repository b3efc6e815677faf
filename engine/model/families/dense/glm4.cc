// GLM-4-0414 (GLM team 2025), as transformers' Glm4ForCausalLM: GLM with a norm after attention and
// MLP as well as before.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/glm_parts.h"
#include "engine/model/families/llama_decoder.h"

namespace tandem::engine::glm4 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Glm4ForCausalLM", "glm4"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseGlm(json, source);
  c.family = "glm4";
  return c;
}

Json WriteConfig(const ModelConfig& c) { return WriteGlm(c, "Glm4ForCausalLM", "glm4"); }

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = {.qkv = c.attention_bias},
          .norms = {.attention_out = "post_self_attn_layernorm", .mlp_out = "post_mlp_layernorm"},
          .mlp = MlpKind::kFusedGate};
}

constexpr auto kGgufParts =
    JoinGgufParts(kGlmGgufParts, std::to_array<GgufPart>({
                                     {"post_attention_norm", "post_self_attn_layernorm"},
                                     {"post_ffw_norm", "post_mlp_layernorm"},
                                 }));
constexpr GgufArchitecture kGguf{.name = "glm4",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGlmGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGlmGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "glm4",
    .models = "GLM-4-0414",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListInterleavedRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTinyGlm,
    .gguf = &kGguf,
    .lora = &kGlmLoraNames,
};

}  // namespace tandem::engine::glm4
