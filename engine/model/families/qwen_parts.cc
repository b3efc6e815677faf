#include "engine/model/families/qwen_parts.h"

#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hf_rope.h"

namespace tandem::engine {

using Json = nlohmann::ordered_json;

ModelConfig ParseDenseQwen(const Json& json, int64_t head_dim, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 151936,
                                .hidden_dim = 4096,
                                .ffn_dim = 22016,
                                .n_kv_heads = 32,
                                .head_dim = head_dim,
                                .max_context_len = 32768},
                               source);
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  ParseQwenWindows(json, c, source);
  return c;
}

void ReadQwenGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  json["hidden_act"] = "silu";
  json["use_sliding_window"] = false;
}

void ParseQwenWindows(const Json& json, ModelConfig& config, const std::string& source) {
  config.attention.window = ParseUsedWindow(json, 4096, source);
  const int64_t first = JsonIntOr(json, "max_window_layers", 28, 0, kMaxLayers, source);
  ParseLayerTypes(
      json, [=](int64_t layer) { return layer >= first; }, config, source);
}

void WriteQwenWindows(const ModelConfig& config, Json& json) {
  int64_t first = 0;
  while (first < config.n_layers && config.LayerAttention(first).window == 0) ++first;
  WriteUsedWindow(config, json);
  json["max_window_layers"] = first;
  json["layer_types"] = LayerTypesToJson(config);
}

}  // namespace tandem::engine
