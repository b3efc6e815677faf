#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat/answers/reasoning_splitter.h"
#include "engine/engine.h"
#include "server/handlers/handlers.h"
#include "server/models/model_registry.h"
#include "server/wire/chat_request.h"

namespace tandem::server {

// The constraint of an answer to a chat.
struct AnswerGrammar {
  std::shared_ptr<const engine::Grammar> grammar;  // null: any text
  bool is_text = false;              // the whole answer is content, without thoughts and calls
  std::vector<std::string> ignored;  // schemas that do not constrain calls, for x-ignored-params
};

// Compiles the grammar of a chat's calls and of its structured output, on this thread unless the
// model has it. `reasoning`: where the answer begins; a thought may stand before both.
//
// Throws kInvalidArgument with the path of a schema or input format that the grammar cannot hold,
// if a call is forced or the tool is strict. Otherwise such a tool takes any object, and `ignored`
// names its schema. Throws kUnsupported for forced calls and for input formats if the model cannot
// be constrained; other calls are then free.
AnswerGrammar ConstrainChat(const HandlerContext& context, const ServedModel& model,
                            const ChatRequest& chat,
                            std::optional<engine::ReasoningSplitter::State> reasoning);

}  // namespace tandem::server
