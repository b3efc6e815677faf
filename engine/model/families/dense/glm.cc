// GLM-4 of 2024 (GLM team 2024), as transformers' GlmForCausalLM: Llama's blocks with gate and up
// in one product; half of each head rotates, in interleaved pairs.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/glm_parts.h"
#include "engine/model/families/llama_decoder.h"

namespace tandem::engine::glm {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"GlmForCausalLM", "glm"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseGlm(json, source);
  c.family = "glm";
  return c;
}

Json WriteConfig(const ModelConfig& c) { return WriteGlm(c, "GlmForCausalLM", "glm"); }

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = {.qkv = c.attention_bias}, .mlp = MlpKind::kFusedGate};
}

std::string GgufCaveat(const ModelConfig& c) {
  return c.attention.n_heads * c.attention.head_dim == c.hidden_dim
             ? ""
             : "llama.cpp loads this architecture only if the heads are together as wide as the "
               "model";
}

constexpr GgufArchitecture kGguf{.name = "chatglm",
                                 .parts = kGlmGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGlmGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGlmGgufLimits,
                                 .caveat = GgufCaveat};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "glm",
    .models = "GLM-4 (2024)",
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

}  // namespace tandem::engine::glm
