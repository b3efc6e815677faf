#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "server/wire/generation_fields.h"

namespace tandem::server {

// Reads the object `options` of a request of Ollama's API and writes the fields of /v1 with the
// same meaning into `body`. Appends the options without effect to `ignored`, as "options.num_gpu".
// Throws as FieldReader does, with paths such as "options.temperature", and kUnsupported for
// samplers that this server does not have.
void ReadOllamaOptions(FieldReader& reader, const ModelLimits& limits, nlohmann::ordered_json& body,
                       std::vector<std::string>& ignored);

// `keep_alive`: seconds, or a duration such as "5m". Returns whether it is zero. Throws BadValue.
bool ReadKeepAlive(FieldReader& reader);

}  // namespace tandem::server
