#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/engine.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// Settings of one answer with llama-server's names.
nlohmann::ordered_json GenerationSettings(const ServedModel& model,
                                          const engine::SamplingParams& sampling,
                                          const engine::StopSpec& stop);

}  // namespace tandem::server
