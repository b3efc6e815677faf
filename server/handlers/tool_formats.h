#pragma once

#include <string>

#include "engine/chat/answers/tool_format.h"
#include "server/handlers/handlers.h"
#include "server/models/model_registry.h"
#include "server/wire/tool_fields.h"

namespace tandem::server {

// Throws kInvalidArgument unless the value of --tool-parser is auto, none or a row of ToolFormats.
void CheckToolParser(const std::string& name);

// The format in which the model writes tool calls, by --tool-parser or by its chat template; null:
// none.
const engine::ToolFormat* ToolFormatOf(const HandlerContext& context, const ServedModel& model);

// Throws kUnsupported (tools) for a request with tools to a model without a format, because its
// template would leave them out.
void CheckToolFormat(const HandlerContext& context, const ServedModel& model,
                     const ToolFields& tools);

}  // namespace tandem::server
