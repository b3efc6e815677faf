#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/gguf_architecture.h"

namespace tandem::engine {

// The multipliers of Granite's families: of embeddings, scores, residuals and logits.
void ParseGraniteMultipliers(const nlohmann::ordered_json& json, ModelConfig& config,
                             const std::string& source);
void WriteGraniteMultipliers(const ModelConfig& config, nlohmann::ordered_json& json);
// `logits_scaling`, by which logits are divided.
double GraniteLogitsScaling(const ModelConfig& config);
// The same in GGUF files.
void ReadGgufMultipliers(const GgufMetadata& metadata, nlohmann::ordered_json& json);
void AddGgufMultipliers(const ModelConfig& config, std::vector<GgufSetting>& settings);

}  // namespace tandem::engine
