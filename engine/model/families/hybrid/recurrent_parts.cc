#include "engine/model/families/hybrid/recurrent_parts.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/families/hf_config.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAttentionLayer = "full_attention";

}  // namespace

void ParseRecurrentLayers(const Json& json, std::string_view recurrent,
                          const std::function<bool(int64_t layer)>& by_default, ModelConfig& config,
                          const std::string& source) {
  const auto types = json.find("layer_types");
  const bool given = types != json.end() && !types->is_null();
  if (given && (!types->is_array() || static_cast<int64_t>(types->size()) != config.n_layers)) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'layer_types' must be a list of " +
                                          std::to_string(config.n_layers) + " names");
  }
  std::vector<bool>& layers = config.recurrent.layers;
  layers.clear();
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    if (!given) {
      layers.push_back(by_default(layer));
      continue;
    }
    Json wrapped = Json::object();
    wrapped["layer_types"] = (*types)[static_cast<size_t>(layer)];
    const std::string type = JsonStringOr(wrapped, "layer_types", "", source);
    if (type != recurrent && type != kAttentionLayer) {
      ThrowUnsupported(source, "layer type " + Quoted(type) + " in 'layer_types'; supported are '" +
                                   std::string(recurrent) + "' and '" + kAttentionLayer + "'");
    }
    layers.push_back(type == recurrent);
  }
}

Json RecurrentLayersToJson(const ModelConfig& config, std::string_view recurrent) {
  Json types = Json::array();
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    types.push_back(config.IsRecurrent(layer) ? std::string(recurrent) : kAttentionLayer);
  }
  return types;
}

WeightSpec ConvSpecOf(std::string name, const ConvSpec& conv) {
  return {.name = std::move(name),
          .kind = WeightKind::kVector,
          .source_shape = {conv.channels, 1, conv.kernel},
          .n = conv.channels * conv.kernel};
}

}  // namespace tandem::engine
