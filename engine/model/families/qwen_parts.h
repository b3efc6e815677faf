#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/model/families/config.h"
#include "engine/model/families/gguf_architecture.h"

namespace tandem::engine {

// Parts of Qwen's families: the config.json of the dense Qwen 2 and 3, and windows.

// `head_dim` is for configs without the key; 0: as wide as the model allows.
ModelConfig ParseDenseQwen(const nlohmann::ordered_json& json, int64_t head_dim,
                           const std::string& source);
void ReadQwenGguf(const GgufMetadata& metadata, nlohmann::ordered_json& json);

// `sliding_window` counts only with `use_sliding_window`, from layer `max_window_layers` on.
void ParseQwenWindows(const nlohmann::ordered_json& json, ModelConfig& config,
                      const std::string& source);
void WriteQwenWindows(const ModelConfig& config, nlohmann::ordered_json& json);

}  // namespace tandem::engine
