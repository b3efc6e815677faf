#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/model/families/config.h"

namespace tandem::engine {

// Keys of config.json in families whose norms are LayerNorms. All functions throw kDataLoss /
// kUnsupported naming `source` and the field.

// Reads the norms' epsilon from `field`, into config.norm_eps.
void ParseNormEps(const nlohmann::ordered_json& json, const char* field, double fallback,
                  ModelConfig& config, const std::string& source);
// As WriteDecoder, with the epsilon in `eps_field` and without the keys of Llama's class.
nlohmann::ordered_json WriteLayerNormDecoder(const ModelConfig& config, const char* architecture,
                                             const char* model_type, const char* eps_field);

// Refuses a model whose `field` is not `value`, which is its default.
void RequireBool(const nlohmann::ordered_json& json, const char* field, bool value,
                 const std::string& source);
// Refuses a model whose `field` is neither absent nor 0.
void RequireZero(const nlohmann::ordered_json& json, const char* field, const std::string& source);

}  // namespace tandem::engine
