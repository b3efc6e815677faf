#include "server/handlers/tool_formats.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/chat/answers/declared_tools.h"
#include "engine/chat/chat_template.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

// A custom tool as a function that templates can describe.
Json AsFunction(const Json& custom) {
  const auto name = custom["name"].get<std::string>();
  std::string description = custom.value("description", "");
  const auto add = [&](const std::string& line) {
    if (!description.empty()) description += '\n';
    description += line;
  };
  if (custom.contains("format") && custom["format"].contains("grammar")) {
    const Json& grammar = custom["format"]["grammar"];
    add("The input obeys this " + grammar["syntax"].get<std::string>() + " grammar:\n" +
        grammar["definition"].get<std::string>());
  }
  if (engine::HasRawInput(custom)) {
    add("To call this tool, end the answer with this line and the input behind it, unquoted:\n" +
        engine::RawInputMark(name));
  }
  Json function = {{"name", name}};
  if (!description.empty()) function["description"] = description;
  function["parameters"] = {{"type", "object"},
                            {"properties", {{"input", {{"type", "string"}}}}},
                            {"required", Json::array({"input"})}};
  return {{"type", "function"}, {"function", std::move(function)}};
}

std::shared_ptr<const Json> AsFunctions(const std::shared_ptr<const Json>& tools) {
  Json out = Json::array();
  bool has_custom = false;
  for (const Json& tool : *tools) {
    const bool is_custom = tool.contains("custom") && tool["type"] == "custom";
    has_custom = has_custom || is_custom;
    out.push_back(is_custom ? AsFunction(tool["custom"]) : tool);
  }
  return has_custom ? std::make_shared<const Json>(std::move(out)) : tools;
}

// Describes tools to a model whose template does not.
std::string ToolText(const Json& tools, const engine::ToolFormat& format) {
  std::string out = "You can call these functions. Their parameters are JSON Schemas.\n";
  for (const Json& tool : tools) out += tool["function"].dump() + "\n";
  out += "To call the function f, answer with nothing but a text of this form:\n";
  out += format.summary;
  return out;
}

// The calls of a message as text, in the generic form.
std::string CallText(const Json& message, const engine::ToolFormat& format) {
  const bool is_json = format.style == engine::CallStyle::kJson;
  const std::string key(is_json ? format.arguments_key : "arguments");
  std::string out = message.value("content", "");
  for (const Json& call : message["tool_calls"]) {
    if (!call.contains("function")) continue;
    const Json& function = call["function"];
    if (!out.empty()) out += '\n';
    if (is_json) out += format.opening;
    out += Json{{"name", function.value("name", "")}, {key, function["arguments"]}}.dump();
    if (is_json) out += format.closing;
  }
  return out;
}

// Rewrites what a template without tools would drop or refuse.
Json WithoutTools(const Json& messages, const engine::ToolFormat& format) {
  Json out = Json::array();
  bool was_result = false;
  for (const Json& message : messages) {
    const bool is_result = message["role"] == "tool";
    const bool joins = std::exchange(was_result, is_result) && is_result;
    if (is_result) {
      const std::string text = "The call returned:\n" + message.value("content", "");
      if (joins) {
        out.back()["content"] = out.back()["content"].get<std::string>() + "\n" + text;
      } else {
        out.push_back({{"role", "user"}, {"content", text}});
      }
      continue;
    }
    out.push_back(message);
    if (!message.contains("tool_calls")) continue;
    out.back()["content"] = CallText(message, format);
    out.back().erase("tool_calls");
  }
  return out;
}

// Puts the text in front: as the system's, or within the first message if the template has no
// system message.
Json WithText(const engine::LoadedModel& loaded, Json messages, const std::string& text) {
  if (messages.front()["role"] == "system") {
    messages.front()["content"] = text + "\n\n" + messages.front().value("content", "");
    return messages;
  }
  Json out = Json::array({{{"role", "system"}, {"content", text}}});
  for (const Json& message : messages) out.push_back(message);
  engine::RenderInput input;
  input.messages = &out;
  input.bos_token = loaded.bos_text;
  input.eos_token = loaded.eos_text;
  const auto refused = ErrorOf({ErrorCode::kInvalidArgument, ErrorCode::kUnsupported},
                               [&] { loaded.chat_template->Render(input); });
  if (!refused) return out;
  messages.front()["content"] = text + "\n\n" + messages.front().value("content", "");
  return messages;
}

}  // namespace

void CheckToolParser(const std::string& name) {
  if (name == "auto" || name == "none" || engine::FindToolFormat(name) != nullptr) return;
  throw Error(ErrorCode::kInvalidArgument, "--tool-parser must be auto, none, " +
                                               engine::ToolFormatNames() + ", got '" + name + "'");
}

const engine::ToolFormat* ToolFormatOf(const HandlerContext& context, const ServedModel& model) {
  if (context.tool_parser == "auto") return model.loaded().tool_format;
  return engine::FindToolFormat(context.tool_parser);  // null for "none"
}

const engine::ToolFormat& CallFormatOf(const HandlerContext& context, const ServedModel& model) {
  const engine::ToolFormat* format = ToolFormatOf(context, model);
  return format != nullptr ? *format : *engine::FindToolFormat("json");
}

void PrepareTools(const HandlerContext& context, const ServedModel& model, ChatPrompt& prompt) {
  if (prompt.tools.tools == nullptr) return;
  if (context.tool_parser == "none") {
    throw UnsupportedField("tools", "model '" + model.id +
                                        "' takes no tools, because the server runs with "
                                        "--tool-parser none: leave tools out, or start the server "
                                        "with --tool-parser and one of " +
                                        engine::ToolFormatNames());
  }
  prompt.tools.tools = AsFunctions(prompt.tools.tools);
  const engine::LoadedModel& loaded = model.loaded();
  // EncodeChat refuses a chat without a template. A prompt of token ids has passed it.
  if (!loaded.chat_template || prompt.messages == nullptr) return;
  const bool writes_tools =
      ToolFormatOf(context, model) != nullptr && loaded.chat_template->Mentions("tools");
  if (writes_tools) return;
  const engine::ToolFormat& format = CallFormatOf(context, model);
  prompt.messages = std::make_shared<const Json>(WithText(
      loaded, WithoutTools(*prompt.messages, format), ToolText(*prompt.tools.tools, format)));
  prompt.tools.tools = nullptr;
}

}  // namespace tandem::server
