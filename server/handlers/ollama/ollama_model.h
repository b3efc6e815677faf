#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/handlers/handlers.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// `model`, or `name` as older clients write it. Throws kInvalidArgument if there is none.
std::string ReadOllamaName(const nlohmann::ordered_json& body);

// The name of the model that an Ollama client means: without ":latest" and without "hf.co/", unless
// a model has the name itself.
std::string ServedNameOf(const HandlerContext& context, std::string name);
// Leases the model. Throws as ModelRegistry::Find.
std::shared_ptr<const ServedModel> FindOllamaModel(const HandlerContext& context,
                                                   const Request& request, const std::string& name);

// The name in lists. Ollama's names have a tag, and clients add ":latest" to one without.
std::string OllamaNameOf(const std::string& name);

// The object `details` of a model.
nlohmann::ordered_json OllamaDetails(const ServedModel& model);
// 64 hexadecimal digits that change with the name and with the weights.
std::string OllamaDigest(const ModelRegistry::Entry& entry);
// Lists what the model can do, in Ollama's words.
nlohmann::ordered_json OllamaCapabilities(const HandlerContext& context, const ServedModel& model);

}  // namespace tandem::server
