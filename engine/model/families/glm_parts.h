#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/model/families/config.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine {

// Parts of the two dense GLM-4 families: their config.json, GGUF settings and names of adapters.

ModelConfig ParseGlm(const nlohmann::ordered_json& json, const std::string& source);
nlohmann::ordered_json WriteGlm(const ModelConfig& config, const char* architecture,
                                const char* model_type);
void ShapeTinyGlm(ModelConfig& config);

void ReadGlmGguf(const GgufMetadata& metadata, nlohmann::ordered_json& json);
inline constexpr auto kGlmGgufParts = JoinGgufParts(kGgufTwoNormParts, kGgufAttentionParts,
                                                    std::to_array<GgufPart>({
                                                        {"ffn_up", "mlp.gate_up_proj"},
                                                        {"ffn_down", "mlp.down_proj"},
                                                    }));
inline constexpr auto kGlmGgufLimits =
    std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu});

inline constexpr std::array kGlmLoraRules =
    JoinRules(kMaxTextQueryAndKey, kMaxTextValueAndOut, kMaxTextFusedMlp);
inline constexpr LoraNames kGlmLoraNames{.rules = kGlmLoraRules};

}  // namespace tandem::engine
