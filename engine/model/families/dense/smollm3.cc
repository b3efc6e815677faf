// SmolLM3 (Hugging Face 2025), as transformers' SmolLM3ForCausalLM: Llama's blocks; each fourth
// layer has no rope.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
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

namespace tandem::engine::smollm3 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"SmolLM3ForCausalLM", "smollm3"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 128256,
                                .hidden_dim = 2048,
                                .n_layers = 36,
                                .n_heads = 16,
                                .n_kv_heads = 4,
                                .max_context_len = 32768,
                                .tied_embeddings = true,
                                .bos = {128000},
                                .eos = {128001}},
                               source);
  c.family = "smollm3";
  ParseRope(json, 2000000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.mlp_bias = JsonBoolOr(json, "mlp_bias", false, source);
  ParseRopeLayers(json, c, source);
  c.attention.window = ParseUsedWindow(json, 0, source);
  ParseLayerTypes(
      json, [&](int64_t layer) { return c.LayerRope(layer) == ModelConfig::kNoRope; }, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "SmolLM3ForCausalLM", "smollm3");
  json["pad_token_id"] = nullptr;  // the class's own, 128004, may be outside of the vocabulary
  json["mlp_bias"] = c.mlp_bias;
  json["no_rope_layers"] = RopeLayersToJson(c);
  WriteUsedWindow(c, json);
  json["layer_types"] = LayerTypesToJson(c);
  return json;
}

void SetDefaultRopes(ModelConfig& c) {
  c.layer_ropes.clear();
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    c.layer_ropes.push_back((layer + 1) % kNoRopeInterval != 0 ? int8_t{0} : ModelConfig::kNoRope);
  }
}

void ShapeTiny(ModelConfig& c) {
  c.n_layers = 4;
  c.attention.n_kv_heads = 2;
  SetDefaultRopes(c);
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  json["hidden_act"] = "silu";
  json["pad_token_id"] = nullptr;
}

// Readers know the layers without rope by their number.
std::string RequireEachFourth(const ModelConfig& c) {
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const bool rotates = c.LayerRope(layer) != ModelConfig::kNoRope;
    if (rotates != ((layer + 1) % kNoRopeInterval != 0))
      return "'no_rope_layers' other than each fourth";
  }
  return "";
}

constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu, RefuseMlpBias,
                              RefuseAttentionBias, RefuseWindow, RequireEachFourth});
constexpr GgufArchitecture kGguf{.name = "smollm3",
                                 .parts = kGgufLlamaParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "smollm3",
    .models = "SmolLM3",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<PlainTraits>,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<PlainTraits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .lora = &kDecoderLoraNames,
};

}  // namespace tandem::engine::smollm3
