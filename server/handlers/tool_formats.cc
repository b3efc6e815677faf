#include "server/handlers/tool_formats.h"

#include <string>

namespace tandem::server {

void CheckToolParser(const std::string& name) {
  if (name == "auto" || name == "none" || engine::FindToolFormat(name) != nullptr) return;
  throw Error(ErrorCode::kInvalidArgument, "--tool-parser must be auto, none, " +
                                               engine::ToolFormatNames() + ", got '" + name + "'");
}

const engine::ToolFormat* ToolFormatOf(const HandlerContext& context, const ServedModel& model) {
  if (context.tool_parser == "auto") return model.loaded().tool_format;
  return engine::FindToolFormat(context.tool_parser);  // null for "none"
}

void CheckToolFormat(const HandlerContext& context, const ServedModel& model,
                     const ToolFields& tools) {
  if (tools.tools == nullptr || ToolFormatOf(context, model) != nullptr) return;
  const std::string why = context.tool_parser == "none"
                              ? "the server runs with --tool-parser none"
                              : "its chat template writes no tool calls in a known format";
  throw UnsupportedField("tools", "model '" + model.id + "' takes no tools, because " + why +
                                      ": leave tools out, or start the server with --tool-parser "
                                      "and one of " +
                                      engine::ToolFormatNames());
}

}  // namespace tandem::server
