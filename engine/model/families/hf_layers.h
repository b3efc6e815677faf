#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/families/config.h"

namespace tandem::engine {

// Keys of config.json that tell layers apart: their kinds, windows and ropes. All functions throw
// as those of hf_config.h.

// Names in `layer_types`.
inline constexpr const char* kFullLayer = "full_attention";
inline constexpr const char* kWindowedLayer = "sliding_attention";

// By layer, whether `layer_types` says `kind`; other layers must be kFullLayer. nullopt where the
// key is absent.
std::optional<std::vector<bool>> ParseLayerKinds(const nlohmann::ordered_json& json,
                                                 std::string_view kind, int64_t n_layers,
                                                 const std::string& source);
nlohmann::ordered_json LayerKindsToJson(const std::vector<bool>& of_kind, std::string_view kind);
// A list of layer numbers in [0, most]; nullopt where the field is absent.
std::optional<std::vector<int64_t>> ParseLayerNumbers(const nlohmann::ordered_json& json,
                                                      const char* field, int64_t most,
                                                      const std::string& source);

// `sliding_window`: 0 (no window) for null, `fallback` when absent.
int64_t ParseWindow(const nlohmann::ordered_json& config, int64_t fallback,
                    const std::string& source);
// null for no window.
nlohmann::ordered_json WindowToJson(const ModelConfig& config);
// The same in classes whose window counts only with `use_sliding_window`.
int64_t ParseUsedWindow(const nlohmann::ordered_json& config, int64_t fallback,
                        const std::string& source);
void WriteUsedWindow(const ModelConfig& config, nlohmann::ordered_json& json);

// Sets the layers that attention.window applies to: `layer_types` if present, otherwise
// `by_default`. A window on no layer becomes 0.
void ParseLayerTypes(const nlohmann::ordered_json& json,
                     const std::function<bool(int64_t layer)>& by_default, ModelConfig& config,
                     const std::string& source);
nlohmann::ordered_json LayerTypesToJson(const ModelConfig& config);
// Whether attention.window applies, by layer.
std::vector<bool> WindowedLayers(const ModelConfig& config);
// `sliding_window` and its layers: by default all except each `every`th.
void ParseWindowPattern(const nlohmann::ordered_json& json, int64_t default_window, int64_t every,
                        ModelConfig& config, const std::string& source);
// `sliding_window` and `layer_types`.
void WriteWindows(const ModelConfig& config, nlohmann::ordered_json& json);

// `no_rope_layers`, a list with 1 for each layer that has rope. By default each
// `no_rope_layer_interval`th has none.
inline constexpr int64_t kNoRopeInterval = 4;  // where the key is absent
void ParseRopeLayers(const nlohmann::ordered_json& json, ModelConfig& config,
                     const std::string& source);
nlohmann::ordered_json RopeLayersToJson(const ModelConfig& config);
// Leaves rope to the layers with a window.
void SkipRopeOnFullLayers(ModelConfig& config);

}  // namespace tandem::engine
