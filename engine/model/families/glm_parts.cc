#include "engine/model/families/glm_parts.h"

#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"

namespace tandem::engine {

using Json = nlohmann::ordered_json;

ModelConfig ParseGlm(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 151552,
                                .ffn_dim = 13696,
                                .n_layers = 40,
                                .n_kv_heads = 2,
                                .head_dim = 128,
                                .max_context_len = 131072,
                                .norm_eps = 1.5625e-7,
                                .eos = {151329, 151336, 151338}},
                               source);
  c.attention_bias = JsonBoolOr(json, "attention_bias", true, source);
  ParseRope(json, {.partial = true, .rotary_factor = 0.5}, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  return c;
}

Json WriteGlm(const ModelConfig& c, const char* architecture, const char* model_type) {
  Json json = WriteDecoder(c, architecture, model_type);
  json["partial_rotary_factor"] = RotaryFactor(c.rotary_dim, c.attention.head_dim);
  json["pad_token_id"] = nullptr;  // the class's own, 151329, may be outside of the vocabulary
  return json;
}

void ShapeTinyGlm(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention_bias = true;
  c.rotary_dim = c.attention.head_dim / 2;
}

void ReadGlmGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, {.partial_rope = true});
  json["hidden_act"] = "silu";
  json["pad_token_id"] = nullptr;
}

}  // namespace tandem::engine
