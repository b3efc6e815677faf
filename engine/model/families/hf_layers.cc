#include "engine/model/families/hf_layers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/families/hf_config.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxWindow = int64_t{1} << 40;

int8_t RopeIf(bool rotates) { return rotates ? int8_t{0} : ModelConfig::kNoRope; }

// A list with an element for each layer; null where the field is absent.
const Json* FindLayerList(const Json& json, const char* field, int64_t n_layers, const char* what,
                          const std::string& source) {
  if (!IsGiven(json, field)) return nullptr;
  const Json& list = json[field];
  if (list.is_array() && static_cast<int64_t>(list.size()) == n_layers) return &list;
  const std::string got = list.is_array() ? ", got " + std::to_string(list.size()) : "";
  throw Error(ErrorCode::kDataLoss, source + ": field '" + field + "' must be a list of " +
                                        std::to_string(n_layers) + " " + what + got);
}

}  // namespace

std::optional<std::vector<bool>> ParseLayerKinds(const Json& json, std::string_view kind,
                                                 int64_t n_layers, const std::string& source) {
  constexpr const char* kField = "layer_types";
  const Json* list = FindLayerList(json, kField, n_layers, "names", source);
  if (list == nullptr) return std::nullopt;
  std::vector<bool> of_kind;
  for (const Json& element : *list) {
    const std::string type = JsonStringOr(Json{{kField, element}}, kField, "", source);
    if (type != kind && type != kFullLayer) {
      ThrowUnsupported(source, "layer type " + Quoted(type) + " in 'layer_types'; supported are '" +
                                   std::string(kind) + "' and '" + kFullLayer + "'");
    }
    of_kind.push_back(type == kind);
  }
  return of_kind;
}

Json LayerKindsToJson(const std::vector<bool>& of_kind, std::string_view kind) {
  Json types = Json::array();
  for (const bool is_kind : of_kind) types.push_back(is_kind ? std::string(kind) : kFullLayer);
  return types;
}

std::optional<std::vector<int64_t>> ParseLayerNumbers(const Json& json, const char* field,
                                                      int64_t most, const std::string& source) {
  if (!IsGiven(json, field)) return std::nullopt;
  const Json& list = json[field];
  if (!list.is_array() || static_cast<int64_t>(list.size()) > kMaxLayers) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field '" + field + "' must be a list of layer numbers");
  }
  std::vector<int64_t> numbers;
  for (const Json& element : list) {
    numbers.push_back(JsonInt(Json{{field, element}}, field, 0, most, source));
  }
  return numbers;
}

int64_t ParseWindow(const Json& config, int64_t fallback, const std::string& source) {
  if (IsNull(config, "sliding_window")) return 0;
  return JsonIntOr(config, "sliding_window", fallback, 1, kMaxWindow, source);
}

Json WindowToJson(const ModelConfig& config) {
  return config.attention.window > 0 ? Json(config.attention.window) : Json(nullptr);
}

int64_t ParseUsedWindow(const Json& config, int64_t fallback, const std::string& source) {
  const bool is_used = JsonBoolOr(config, "use_sliding_window", false, source);
  return is_used ? ParseWindow(config, fallback, source) : 0;
}

void WriteUsedWindow(const ModelConfig& config, Json& json) {
  json["use_sliding_window"] = config.attention.window > 0;
  json["sliding_window"] = WindowToJson(config);
}

void ParseLayerTypes(const Json& json, const std::function<bool(int64_t layer)>& by_default,
                     ModelConfig& config, const std::string& source) {
  const int64_t window = config.attention.window;
  const auto given = ParseLayerKinds(json, kWindowedLayer, config.n_layers, source);
  std::vector<bool>& windowed = config.windowed_layers;
  windowed = given.value_or(std::vector<bool>());
  for (int64_t layer = 0; !given && layer < config.n_layers; ++layer) {
    windowed.push_back(window > 0 && by_default(layer));
  }
  const bool has_any = std::find(windowed.begin(), windowed.end(), true) != windowed.end();
  if (has_any && window == 0) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'layer_types' has a '" + kWindowedLayer +
                                          "', but field 'sliding_window' is missing");
  }
  if (has_any) return;
  config.attention.window = 0;
  windowed.clear();
}

Json LayerTypesToJson(const ModelConfig& config) {
  return LayerKindsToJson(WindowedLayers(config), kWindowedLayer);
}

std::vector<bool> WindowedLayers(const ModelConfig& config) {
  std::vector<bool> windowed;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    windowed.push_back(config.LayerAttention(layer).window > 0);
  }
  return windowed;
}

void ParseWindowPattern(const Json& json, int64_t default_window, int64_t every,
                        ModelConfig& config, const std::string& source) {
  config.attention.window = ParseWindow(json, default_window, source);
  ParseLayerTypes(
      json, [=](int64_t layer) { return (layer + 1) % every != 0; }, config, source);
}

void WriteWindows(const ModelConfig& config, Json& json) {
  json["sliding_window"] = WindowToJson(config);
  json["layer_types"] = LayerTypesToJson(config);
}

void ParseRopeLayers(const Json& json, ModelConfig& config, const std::string& source) {
  constexpr const char* kField = "no_rope_layers";
  const int64_t every =
      JsonIntOr(json, "no_rope_layer_interval", kNoRopeInterval, 1, kMaxLayers, source);
  const Json* list = FindLayerList(json, kField, config.n_layers, "numbers", source);
  config.layer_ropes.clear();
  for (int64_t layer = 0; list == nullptr && layer < config.n_layers; ++layer) {
    config.layer_ropes.push_back(RopeIf((layer + 1) % every != 0));
  }
  if (list == nullptr) return;
  for (const Json& element : *list) {
    config.layer_ropes.push_back(
        RopeIf(JsonInt(Json{{kField, element}}, kField, 0, 1, source) == 1));
  }
}

Json RopeLayersToJson(const ModelConfig& config) {
  Json layers = Json::array();
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    layers.push_back(config.LayerRope(layer) == ModelConfig::kNoRope ? 0 : 1);
  }
  return layers;
}

void SkipRopeOnFullLayers(ModelConfig& config) {
  config.layer_ropes.clear();
  for (const bool windowed : WindowedLayers(config)) {
    config.layer_ropes.push_back(RopeIf(windowed));
  }
}

}  // namespace tandem::engine
