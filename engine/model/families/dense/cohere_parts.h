#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/llama_decoder.h"

namespace tandem::engine {

// Parts of the two families of Cohere: their config.json, block and GGUF settings.

ModelConfig ParseCohere(const nlohmann::ordered_json& json, double default_theta,
                        const std::string& source);
nlohmann::ordered_json WriteCohere(const ModelConfig& config, const char* architecture,
                                   const char* model_type);
// Attention and MLP read one LayerNorm without bias, and both are added.
LlamaTraits CohereTraits(const ModelConfig& config);
void ShapeTinyCohere(ModelConfig& config);

void ReadCohereGguf(const GgufMetadata& metadata, nlohmann::ordered_json& json);
std::vector<GgufSetting> WriteCohereGguf(const ModelConfig& config);

}  // namespace tandem::engine
