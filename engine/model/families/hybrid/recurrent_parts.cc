#include "engine/model/families/hybrid/recurrent_parts.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/model/families/hf_layers.h"

namespace tandem::engine {

using Json = nlohmann::ordered_json;

void ParseRecurrentLayers(const Json& json, std::string_view recurrent,
                          const std::function<bool(int64_t layer)>& by_default, ModelConfig& config,
                          const std::string& source) {
  const auto given = ParseLayerKinds(json, recurrent, config.n_layers, source);
  std::vector<bool>& layers = config.recurrent.layers;
  layers = given.value_or(std::vector<bool>());
  for (int64_t layer = 0; !given && layer < config.n_layers; ++layer) {
    layers.push_back(by_default(layer));
  }
}

Json RecurrentLayersToJson(const ModelConfig& config, std::string_view recurrent) {
  std::vector<bool> layers;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    layers.push_back(config.IsRecurrent(layer));
  }
  return LayerKindsToJson(layers, recurrent);
}

WeightSpec ConvSpecOf(std::string name, const ConvSpec& conv) {
  return {.name = std::move(name),
          .kind = WeightKind::kVector,
          .source_shape = {conv.channels, 1, conv.kernel},
          .n = conv.channels * conv.kernel};
}

}  // namespace tandem::engine
