// Command R and Aya (Cohere 2024), as transformers' CohereForCausalLM: attention and a gated MLP of
// one LayerNorm without bias, both added; rope on neighbouring dimensions, scaled logits.

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::cohere {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"CohereForCausalLM", "cohere"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 256000,
                                .hidden_dim = 8192,
                                .ffn_dim = 22528,
                                .n_layers = 40,
                                .n_heads = 64,
                                .max_context_len = 8192,
                                .tied_embeddings = true,
                                .bos = {5},
                                .eos = {255001}},
                               source);
  c.family = "cohere";
  ParseNormEps(json, "layer_norm_eps", 1e-5, c, source);
  ParseRope(json, 500000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.logit_multiplier =
      static_cast<float>(JsonNumberOr(json, "logit_scale", 0.0625, 1e-6, 1e6, source));
  // config.json of the first models states 8192 positions beside their real length.
  c.max_context_len =
      std::max(c.max_context_len, JsonIntOr(json, "model_max_length", 1, 1, kMaxContext, source));
  // A scale and a mean for each head would need an op of its own.
  RequireBool(json, "use_qk_norm", false, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteLayerNormDecoder(c, "CohereForCausalLM", "cohere", "layer_norm_eps");
  json["attention_bias"] = c.attention_bias;
  json["logit_scale"] = ShortestDouble(c.logit_multiplier);
  json["use_qk_norm"] = false;
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = EqualBiases(c),
          .norm = NormKind::kLayerWithoutBias,
          .norms = {.mlp_in = ""},
          .parallel = true};
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention_bias = true;
  c.logit_multiplier = 0.25f;
  c.tied_embeddings = true;
}

constexpr GgufDecoderForm kGgufForm{.eps_key = kGgufLayerNormEps, .eps_field = "layer_norm_eps"};

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kGgufForm);
  json["logit_scale"] = Shortest(metadata.RequiredNumber("logit_scale"));
  json["use_qk_norm"] = metadata.HasTensor("blk.0.attn_q_norm.weight");
  json["hidden_act"] = "silu";
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c, kGgufForm);
  settings.push_back({"logit_scale", c.logit_multiplier});
  settings.push_back({"rope.scaling.type", std::string_view("none")});
  return settings;
}

constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RequireSilu, RequirePlainRope, RefuseAttentionBias, RequireTiedHead});
constexpr GgufArchitecture kGguf{.name = "command-r",
                                 .parts = kGgufQwenParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "cohere",
    .models = "Command R, Aya",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListInterleavedRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .lora = &kDecoderLoraNames,
};

}  // namespace tandem::engine::cohere
