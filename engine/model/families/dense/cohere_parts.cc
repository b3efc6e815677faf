#include "engine/model/families/dense/cohere_parts.h"

#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kCohereEps = "layer_norm_eps";
constexpr GgufDecoderForm kCohereForm{.eps_key = kGgufLayerNormEps, .eps_field = kCohereEps};

}  // namespace

ModelConfig ParseCohere(const Json& json, double default_theta, const std::string& source) {
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
  ParseNormEps(json, kCohereEps, 1e-5, c, source);
  ParseRope(json, default_theta, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.logit_multiplier =
      static_cast<float>(JsonNumberOr(json, "logit_scale", 0.0625, 1e-6, 1e6, source));
  return c;
}

Json WriteCohere(const ModelConfig& c, const char* architecture, const char* model_type) {
  Json json = WriteLayerNormDecoder(c, architecture, model_type, kCohereEps);
  json["attention_bias"] = c.attention_bias;
  json["logit_scale"] = ShortestDouble(c.logit_multiplier);
  return json;
}

LlamaTraits CohereTraits(const ModelConfig& c) {
  return {.biases = EqualBiases(c),
          .norm = NormKind::kLayerWithoutBias,
          .norms = {.mlp_in = ""},
          .parallel = true};
}

void ShapeTinyCohere(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention_bias = true;
  c.logit_multiplier = 0.25f;
  c.tied_embeddings = true;
}

void ReadCohereGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kCohereForm);
  json["logit_scale"] = Shortest(metadata.RequiredNumber("logit_scale"));
  json["hidden_act"] = "silu";
}

std::vector<GgufSetting> WriteCohereGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c, kCohereForm);
  AddGgufWindow(c, settings);
  settings.push_back({"logit_scale", c.logit_multiplier});
  settings.push_back({"rope.scaling.type", std::string_view("none")});
  return settings;
}

}  // namespace tandem::engine
