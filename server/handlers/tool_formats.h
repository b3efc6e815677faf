#pragma once

#include <string>

#include "engine/chat/answers/tool_format.h"
#include "server/handlers/handlers.h"
#include "server/models/model_registry.h"
#include "server/wire/chat_request.h"

namespace tandem::server {

// Throws kInvalidArgument unless the value of --tool-parser is auto, none or a row of ToolFormats.
void CheckToolParser(const std::string& name);

// The format in which the model writes tool calls, by --tool-parser or by its chat template; null:
// none.
const engine::ToolFormat* ToolFormatOf(const HandlerContext& context, const ServedModel& model);
// The format of a request's calls: as above, or the row `json`.
const engine::ToolFormat& CallFormatOf(const HandlerContext& context, const ServedModel& model);

// Prepares the tools of a chat for the template. Custom tools become functions with the parameter
// `input`. A template may write no tools, or no calls in a known format. Then a text at the
// beginning of the chat describes the tools and the form of a call, and the history's calls become
// text. Throws kUnsupported (tools) if the server runs with --tool-parser none.
void PrepareTools(const HandlerContext& context, const ServedModel& model, ChatPrompt& prompt);

}  // namespace tandem::server
