#pragma once

#include <string>

#include "server/models/model_registry.h"

namespace tandem::server {

// A curl command for a POSIX shell. It sends a chat if the model has a chat template, else a text
// to complete; a model without a tokenizer gets a token id. `key_variable` names the environment
// variable that holds an API key; empty: the server is open.
std::string ExampleRequest(const std::string& base_url, const ServedModel& model,
                           const std::string& key_variable);

// The command that chats with the model in a terminal.
std::string ExampleChat(const std::string& base_url, const ServedModel& model);

// Address of the console, with a key that the page takes once from the fragment. Browsers do not
// send fragments. Only for a terminal: logs and files must not hold keys. Empty key: none.
std::string ConsoleAddress(const std::string& base_url, const std::string& key);

}  // namespace tandem::server
