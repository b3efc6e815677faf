#pragma once

#include <cstdint>
#include <string>

#include "engine/model/families/config.h"

namespace tandem::engine {

// Rows of GgufArchitecture::limits that families share. Each names the setting that readers do not
// support, or returns an empty string.
std::string RefuseLlama3Rope(const ModelConfig& config);
std::string RefuseUntruncatedYarn(const ModelConfig& config);
std::string RefuseYarn(const ModelConfig& config);
// Files of some architectures state no scaling that their readers apply.
std::string RequirePlainRope(const ModelConfig& config);
std::string RequireSilu(const ModelConfig& config);
std::string RequireSquaredRelu(const ModelConfig& config);
std::string RequireTanhGelu(const ModelConfig& config);
std::string RefuseMlpBias(const ModelConfig& config);
std::string RefuseAttentionBias(const ModelConfig& config);
std::string RequireTiedHead(const ModelConfig& config);
std::string RefuseWindow(const ModelConfig& config);
std::string RequireAlternatingWindows(const ModelConfig& config);

// For GgufArchitecture::caveat.
std::string IgnoredWindowCaveat(const ModelConfig& config);

// GGUF does not store query_pre_attn_scalar: readers recognise the largest model by its number of
// layers.
std::string QueryScalarLimit(const ModelConfig& config, int64_t layers_of_largest);

}  // namespace tandem::engine
