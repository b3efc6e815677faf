#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/wire/completion_request.h"

namespace tandem::server {

enum class LlamaServerRoute { kCompletion, kInfill };

// POST /completion or /infill of llama-server, checked.
struct LlamaServerCompletion {
  CompletionRequest completion;  // one prompt, one choice
  bool returns_tokens = false;
};

// The caller reads `model` first. Fields that only tune llama-server are in `completion.ignored`.
// Throws as ParseCompletionRequest does, and kUnsupported for a list of prompts.
LlamaServerCompletion ParseLlamaServerCompletion(const nlohmann::ordered_json& body,
                                                 LlamaServerRoute route, const ModelLimits& limits);

}  // namespace tandem::server
