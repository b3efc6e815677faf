#include "engine/model/families/hf_layer_norm.h"

#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/hf_config.h"

namespace tandem::engine {

using Json = nlohmann::ordered_json;

void ParseNormEps(const Json& json, const char* field, double fallback, ModelConfig& config,
                  const std::string& source) {
  config.norm_eps = static_cast<float>(JsonNumberOr(json, field, fallback, 0, 1, source));
}

Json WriteLayerNormDecoder(const ModelConfig& config, const char* architecture,
                           const char* model_type, const char* eps_field) {
  Json json = WriteDecoder(config, architecture, model_type);
  json.erase("rms_norm_eps");
  json.erase("attention_bias");
  json[eps_field] = ShortestDouble(config.norm_eps);
  return json;
}

void RequireBool(const Json& json, const char* field, bool value, const std::string& source) {
  if (JsonBoolOr(json, field, value, source) == value) return;
  ThrowUnsupported(source, "'" + std::string(field) + "': " + (value ? "false" : "true"));
}

void RequireZero(const Json& json, const char* field, const std::string& source) {
  if (JsonNumberOr(json, field, 0, 0, 1, source) == 0) return;
  ThrowUnsupported(source, "'" + std::string(field) + "' other than 0");
}

}  // namespace tandem::engine
