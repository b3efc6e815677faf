// Parses lists of messages: training's requirements on top of those for every chat.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/chat/messages.h"
#include "engine/io/json.h"
#include "training/data/example.h"

namespace tandem::training {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void ThrowAt(const std::string& field, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, field + " " + what)
      .WithParam(field)
      .WithReason("invalid_value");
}

bool IsText(const Json& message, const char* field) {
  return message.contains(field) && message.at(field).is_string() &&
         !message.at(field).get_ref<const std::string&>().empty();
}

// A model that learns broken calls writes broken calls. Training therefore refuses arguments that
// serving would pass on as text.
void CheckArguments(const Json& message, const std::string& at) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  for (size_t i = 0; i < calls->size(); ++i) {
    if ((*calls)[i].at("function").at("arguments").is_object()) continue;
    ThrowAt(at + ".tool_calls[" + std::to_string(i) + "].function.arguments",
            "must be an object or the JSON text of one");
  }
}

// Whether the message is learned: true for assistants, unless the weight is 0.
bool ReadWeight(const Json& message, const std::string& role, const std::string& at) {
  const auto weight = message.find("weight");
  if (weight == message.end() || weight->is_null()) return role == "assistant";
  if (!weight->is_number() || (*weight != 0 && *weight != 1)) {
    ThrowAt(at + ".weight", "must be 0 or 1, got " + Quoted(weight->dump(), 40));
  }
  if (role != "assistant") {
    ThrowAt(at + ".weight", "is only allowed on messages of the assistant, not of the " + role);
  }
  return *weight == 1;
}

// Some data sets write the list as JSON text.
std::shared_ptr<const Json> CheckTools(const Json* given) {
  if (given == nullptr || given->is_null()) return nullptr;
  auto tools = std::make_shared<Json>(*given);
  if (tools->is_string()) {
    const std::string text = tools->get<std::string>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return nullptr;
    *tools =
        engine::ParseUntrustedJson(text, "tools", engine::JsonLimits{.keep_wide_integers = true});
  }
  if (!tools->is_array()) ThrowAt("tools", "must be a list");
  if (tools->empty()) return nullptr;
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string at = "tools[" + std::to_string(i) + "]";
    Json& tool = (*tools)[i];
    if (!tool.is_object()) ThrowAt(at, "must be an object");
    // Wraps a bare function, as some data sets have it, in the form that templates expect.
    if (!tool.contains("function") && tool.contains("name")) {
      tool = Json{{"type", "function"}, {"function", tool}};
    }
    if (!tool.contains("function") || !tool.at("function").is_object()) {
      ThrowAt(at + ".function", "must be an object");
    }
    if (!IsText(tool.at("function"), "name")) ThrowAt(at + ".function.name", "must be a text");
  }
  return tools;
}

}  // namespace

Conversation ParseConversation(const Json& messages, const Json* tools, const std::string& field,
                               bool developer_as_system, LastMessage last) {
  if (!messages.is_array()) ThrowAt(field, "must be a list of messages");
  if (messages.empty()) ThrowAt(field, "must have at least one message");
  if (messages.size() > engine::kMaxMessages) {
    ThrowAt(field, "has " + std::to_string(messages.size()) + " messages, and a chat may have " +
                       std::to_string(engine::kMaxMessages) + ": split it into several chats");
  }
  Json normalized = engine::NormalizeMessages(
      messages, {.path = field, .developer_as_system = developer_as_system});
  Conversation chat;
  bool speaks = false;
  for (size_t i = 0; i < normalized.size(); ++i) {
    const std::string at = field + "[" + std::to_string(i) + "]";
    const auto role = messages[i].at("role").get<std::string>();
    CheckArguments(normalized[i], at);
    chat.learned.push_back(ReadWeight(messages[i], role, at));
    speaks = speaks || role == "assistant";
  }
  if (last == LastMessage::kAssistant) {
    if (!speaks) ThrowAt(field, "has no message of the assistant, so it has nothing to learn");
    if (!engine::IsString(messages.back().at("role"), "assistant")) {
      ThrowAt(field, "must end with a message of the assistant, ends with one of the " +
                         messages.back().at("role").get<std::string>());
    }
    if (std::find(chat.learned.begin(), chat.learned.end(), true) == chat.learned.end()) {
      ThrowAt(field, "has weight 0 on every message of the assistant, so it has nothing to learn");
    }
  }
  chat.messages = std::make_shared<const Json>(std::move(normalized));
  chat.tools = CheckTools(tools);
  return chat;
}

}  // namespace tandem::training
