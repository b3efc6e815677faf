#include "engine/model/families/hf_layer_heads.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/families/hf_config.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void ThrowBadHeads(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kDataLoss, source + ": " + what);
}

bool IsWindowedLayer(const ModelConfig& c, int64_t layer) {
  return !c.windowed_layers.empty() && c.windowed_layers[static_cast<size_t>(layer)];
}

struct HeadSizes {
  int64_t head_dim = 0;
  int64_t n_kv_heads = 0;
};

HeadSizes ParseHeadSizes(const Json& object, const char* dim_key, const char* heads_key,
                         HeadSizes otherwise, int64_t n_heads, const std::string& source) {
  const HeadSizes sizes = {JsonIntOr(object, dim_key, otherwise.head_dim, 2, kMaxHeadDim, source),
                           JsonIntOr(object, heads_key, otherwise.n_kv_heads, 1, n_heads, source)};
  if (sizes.head_dim % 2 != 0 || n_heads * sizes.head_dim > kMaxWidth) {
    ThrowBadHeads(source, "field '" + std::string(dim_key) + "' must be even and at most " +
                              std::to_string(kMaxWidth) + " over all heads, got " +
                              std::to_string(sizes.head_dim));
  }
  if (n_heads % sizes.n_kv_heads != 0) {
    ThrowBadHeads(source, "field '" + std::string(heads_key) + "' must divide " +
                              std::to_string(n_heads) + " ('num_attention_heads'), got " +
                              std::to_string(sizes.n_kv_heads));
  }
  return sizes;
}

HeadSizes ParseLayerOverride(const Json* override, HeadSizes otherwise, int64_t n_heads,
                             const std::string& source) {
  if (override == nullptr) return otherwise;
  if (!override->is_object()) {
    ThrowBadHeads(source, "field 'per_layer_config' must hold an object for each layer");
  }
  for (const auto& [key, value] : override->items()) {
    if (key != "head_dim" && key != "num_key_value_heads") {
      ThrowUnsupported(source, "'per_layer_config' with " + Quoted(key));
    }
  }
  return ParseHeadSizes(*override, "head_dim", "num_key_value_heads", otherwise, n_heads, source);
}

// By layer; null without one. The keys are numbers, which transformers pads with zeros to one
// length.
std::vector<const Json*> LayerOverrides(const Json& by_layer, int64_t n_layers,
                                        const std::string& source) {
  if (!by_layer.is_object()) {
    ThrowBadHeads(source, "field 'per_layer_config' must be an object");
  }
  std::vector<const Json*> overrides(static_cast<size_t>(n_layers));
  for (const auto& [key, value] : by_layer.items()) {
    size_t layer = 0;
    const char* const end = key.data() + key.size();
    const auto [stop, failed] = std::from_chars(key.data(), end, layer);
    if (failed != std::errc() || stop != end || layer >= overrides.size() ||
        overrides[layer] != nullptr) {
      ThrowBadHeads(source, "field 'per_layer_config' has the key " + Quoted(key) +
                                "; keys are different numbers of layers below " +
                                std::to_string(n_layers));
    }
    overrides[layer] = &value;
  }
  return overrides;
}

HeadSizes ParseByLayer(const Json& by_layer, const ModelConfig& c, const std::string& source) {
  const std::vector<const Json*> overrides = LayerOverrides(by_layer, c.n_layers, source);
  const HeadSizes local = {c.attention.head_dim, c.attention.n_kv_heads};
  HeadSizes full = local;
  bool first = true;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const HeadSizes sizes = ParseLayerOverride(overrides[static_cast<size_t>(layer)], local,
                                               c.attention.n_heads, source);
    const bool windowed = IsWindowedLayer(c, layer);
    if (!windowed && first) full = sizes;
    first = first && windowed;
    const HeadSizes& same = windowed ? local : full;
    if (sizes.head_dim != same.head_dim || sizes.n_kv_heads != same.n_kv_heads) {
      ThrowUnsupported(source, "'per_layer_config' with different heads in layers of one type");
    }
  }
  return full;
}

}  // namespace

AttentionSpec ParseFullLayerHeads(const Json& json, const FullLayerHeads& defaults,
                                  const ModelConfig& c, const std::string& source) {
  HeadSizes full;
  const auto by_layer = json.find("per_layer_config");
  if (by_layer != json.end() && !by_layer->is_null()) {
    full = ParseByLayer(*by_layer, c, source);
  } else {
    const HeadSizes otherwise = {defaults.head_dim, c.attention.n_kv_heads};
    full = ParseHeadSizes(json, "global_head_dim", "num_global_key_value_heads", otherwise,
                          c.attention.n_heads, source);
    if (!defaults.own_kv_heads) full.n_kv_heads = c.attention.n_kv_heads;
  }
  AttentionSpec spec = c.attention;
  spec.head_dim = full.head_dim;
  spec.n_kv_heads = full.n_kv_heads;
  spec.window = 0;
  return spec;
}

void WriteFullLayerHeads(const ModelConfig& c, const AttentionSpec& full, bool own_kv_heads,
                         Json& json) {
  json["global_head_dim"] = full.head_dim;
  json["num_global_key_value_heads"] = own_kv_heads ? Json(full.n_kv_heads) : Json(nullptr);
  Json by_layer = Json::object();
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    if (IsWindowedLayer(c, layer)) continue;
    by_layer[std::to_string(layer)] = {{"head_dim", full.head_dim},
                                       {"num_key_value_heads", full.n_kv_heads}};
  }
  json["per_layer_config"] = std::move(by_layer);
}

}  // namespace tandem::engine
