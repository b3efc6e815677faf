#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/model/families/config.h"
#include "engine/model/families/weights.h"

namespace tandem::engine {

// Parts that families with recurrent layers share. Parsers throw kDataLoss / kUnsupported naming
// `source` and the field.

// Sets config.recurrent.layers from `layer_types`, a list with the two names: `recurrent` and
// "full_attention". Absent: by_default(layer).
void ParseRecurrentLayers(const nlohmann::ordered_json& json, std::string_view recurrent,
                          const std::function<bool(int64_t layer)>& by_default, ModelConfig& config,
                          const std::string& source);
nlohmann::ordered_json RecurrentLayersToJson(const ModelConfig& config, std::string_view recurrent);

// The weight of a depthwise convolution, stored [channels, 1, kernel].
WeightSpec ConvSpecOf(std::string name, const ConvSpec& conv);

}  // namespace tandem::engine
