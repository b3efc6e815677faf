#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/handlers/handlers.h"
#include "server/models/model_registry.h"
#include "server/respond/reply_shape.h"
#include "server/wire/chat_request.h"
#include "server/wire/completion_request.h"

namespace tandem::server {

// A chat, or the prompts of a completion, ready for Generate.
struct PreparedChat {
  std::vector<engine::GenerationRequest> requests;  // of a chat: one
  ReplyShape shape;                                 // tells how to read the answer, too
  std::vector<std::string> ignored;                 // for x-ignored-params
};

// Renders and encodes a chat, and compiles its grammar: the work that all routes with messages
// share. `id_prefix` is that of the answer's id. Throws what EncodeChat and Constrain throw, and
// for tools or limits that the model does not serve.
PreparedChat PrepareChat(const HandlerContext& context, const ServedModel& model, ChatRequest chat,
                         const std::string& id_prefix, const std::string& request_id);

// The same for plain prompts, one request each. Throws as EncodePlainPrompt and Constrain.
PreparedChat PrepareCompletion(const ServedModel& model, const CompletionRequest& completion,
                               const std::string& id_prefix, const std::string& request_id);

}  // namespace tandem::server
