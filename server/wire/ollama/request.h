#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "server/wire/generation_fields.h"

namespace tandem::server {

// A request of Ollama's /api/chat or /api/generate, checked and translated.
struct OllamaRequest {
  // A body for ParseChatRequest, or for ParseCompletionRequest if `is_plain`. Null: the request has
  // no prompt and only loads or unloads its model.
  std::shared_ptr<const nlohmann::ordered_json> body;
  bool is_plain = false;
  bool is_zero_keep_alive = false;  // without a prompt: unloads the model
  bool stream = true;
  bool thinks = false;           // `think` asks for thoughts
  std::vector<TokenId> context;  // of /api/generate: tokens before the prompt
  std::vector<std::string> ignored;
};

// Check every field under its own name. The caller reads `model` first. They throw as FieldReader
// does, and kUnsupported for images and for templates of the client.
//
// Messages become those of a chat: arguments of calls become text, `thinking` becomes
// reasoning_content, and a message of role tool gets the id of the call that it answers. A last
// message of the assistant is continued. Linear in the size of the body.
OllamaRequest ParseOllamaChat(const nlohmann::ordered_json& body, const ModelLimits& limits);
// `has_template`: the model has a chat template. Without one the prompt is plain.
OllamaRequest ParseOllamaGenerate(const nlohmann::ordered_json& body, const ModelLimits& limits,
                                  bool has_template);

// An error of a later check of `body`, or the path of a field, with the names of Ollama's request.
Error InOllamaTerms(const Error& error);
std::string InOllamaTerms(std::string text);

}  // namespace tandem::server
