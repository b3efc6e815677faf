#pragma once

#include <string>

#include "server/handlers/model_registry.h"

namespace tandem::server {

// A curl command that works as it stands in a POSIX shell: a chat where the model has a chat
// template, else a completion of text, or of a token id where the model has no tokenizer.
// `key_variable` names the environment variable with an API key; empty: the server is open.
std::string ExampleRequest(const std::string& base_url, const ServedModel& model,
                           const std::string& key_variable);

}  // namespace tandem::server
