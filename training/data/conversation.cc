// Lists of messages: what is checked before a template sees them.

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/chat/message.h"
#include "engine/io/json.h"
#include "training/data/example.h"

namespace tandem::training {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

[[noreturn]] void Throw(const std::string& field, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, field + " " + what);
}

bool IsText(const Json& message, const char* field) {
  return message.contains(field) && message.at(field).is_string() &&
         !message.at(field).get_ref<const std::string&>().empty();
}

// Text, or parts of text (which NormalizeMessages joins), or nothing at all.
void CheckContent(const Json& message, const std::string& role, const std::string& at) {
  const bool is_absent = !message.contains("content") || message.at("content").is_null();
  if (is_absent) {
    const bool may_be = role == "assistant" &&
                        (message.contains("tool_calls") || IsText(message, "reasoning_content"));
    if (!may_be) Throw(at, "has no content");
    return;
  }
  const Json& content = message.at("content");
  if (!content.is_string() && !content.is_array()) {
    Throw(at + ".content",
          std::string("must be text or a list of parts, is ") + content.type_name());
  }
}

void CheckToolCalls(const Json& calls, const std::string& at) {
  if (!calls.is_array() || calls.empty()) Throw(at, "must be a list of calls");
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string call_at = at + "[" + std::to_string(i) + "]";
    const Json& call = calls[i];
    if (!call.is_object()) Throw(call_at, "must be an object");
    if (call.contains("type") && call.at("type") != "function") {
      Throw(call_at + ".type", "must be function");
    }
    if (!call.contains("function") || !call.at("function").is_object()) {
      Throw(call_at + ".function", "must be an object");
    }
    const Json& function = call.at("function");
    if (!IsText(function, "name")) Throw(call_at + ".function.name", "must be a text");
    if (!function.contains("arguments")) Throw(call_at + ".function", "has no arguments");
    const Json& arguments = function.at("arguments");
    if (arguments.is_object()) continue;
    if (!arguments.is_string()) {
      Throw(call_at + ".function.arguments", "must be an object or the JSON text of one");
    }
    const std::string field = call_at + ".function.arguments";
    if (!engine::ParseUntrustedJson(arguments.get_ref<const std::string&>(), field).is_object()) {
      Throw(field, "must be the JSON text of an object");
    }
  }
}

// Whether the message is to be learned.
bool CheckWeight(const Json& message, const std::string& role, const std::string& at) {
  if (!message.contains("weight") || message.at("weight").is_null()) return role == "assistant";
  const Json& weight = message.at("weight");
  if (!weight.is_number() || (weight != 0 && weight != 1)) {
    Throw(at + ".weight", "must be 0 or 1, is " + Quoted(weight.dump(), 40));
  }
  if (role != "assistant") {
    Throw(at + ".weight", "is for messages of the assistant, this is the " + role + "'s");
  }
  return weight == 1;
}

bool CheckMessage(const Json& message, const std::string& at) {
  if (!message.is_object()) Throw(at, "must be an object");
  if (!message.contains("role")) Throw(at, "has no role");
  const Json& given = message.at("role");
  const bool is_known =
      given.is_string() &&
      std::find(kRoles.begin(), kRoles.end(), given.get_ref<const std::string&>()) != kRoles.end();
  if (!is_known) {
    Throw(at + ".role",
          "must be system, developer, user, assistant or tool, is " + Quoted(given.dump(), 40));
  }
  const auto& role = given.get_ref<const std::string&>();
  if (message.contains("function_call")) {
    Throw(at + ".function_call", "is the old form; write tool_calls");
  }
  if (message.contains("tool_calls") && !message.at("tool_calls").is_null()) {
    if (role != "assistant") Throw(at + ".tool_calls", "are for messages of the assistant");
    CheckToolCalls(message.at("tool_calls"), at + ".tool_calls");
  }
  CheckContent(message, role, at);
  return CheckWeight(message, role, at);
}

// Some sets write the list as the text of its JSON.
std::shared_ptr<const Json> CheckTools(const Json* given) {
  if (given == nullptr || given->is_null()) return nullptr;
  auto tools = std::make_shared<Json>(*given);
  if (tools->is_string()) {
    const std::string text = tools->get<std::string>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return nullptr;
    *tools = engine::ParseUntrustedJson(text, "tools");
  }
  if (!tools->is_array()) Throw("tools", "must be a list");
  if (tools->empty()) return nullptr;
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string at = "tools[" + std::to_string(i) + "]";
    Json& tool = (*tools)[i];
    if (!tool.is_object()) Throw(at, "must be an object");
    // A bare function, as some sets have it, in the form that templates expect.
    if (!tool.contains("function") && tool.contains("name")) {
      tool = Json{{"type", "function"}, {"function", tool}};
    }
    if (!tool.contains("function") || !tool.at("function").is_object()) {
      Throw(at + ".function", "must be an object");
    }
    if (!IsText(tool.at("function"), "name")) Throw(at + ".function.name", "must be a text");
  }
  return tools;
}

}  // namespace

Conversation ParseConversation(const Json& messages, const Json* tools, const std::string& field,
                               bool developer_as_system, LastMessage last) {
  if (!messages.is_array()) Throw(field, "must be a list of messages");
  if (messages.empty()) Throw(field, "has no message");
  Conversation chat;
  bool speaks = false;
  auto checked = std::make_shared<Json>(messages);
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = (*checked)[i];
    chat.learned.push_back(CheckMessage(message, field + "[" + std::to_string(i) + "]"));
    speaks = speaks || message.at("role") == "assistant";
    message.erase("weight");
    // Templates ask whether it is there, not what it is.
    if (message.contains("tool_calls") && message.at("tool_calls").is_null()) {
      message.erase("tool_calls");
    }
  }
  if (last == LastMessage::kAssistant) {
    if (!speaks) Throw(field, "has no message of the assistant, so there is nothing to learn");
    if (messages.back().at("role") != "assistant") {
      Throw(field, "must end with a message of the assistant, ends with one of the " +
                       messages.back().at("role").get<std::string>());
    }
    if (std::find(chat.learned.begin(), chat.learned.end(), true) == chat.learned.end()) {
      Throw(field, "has weight 0 on every message of the assistant, so there is nothing to learn");
    }
  }
  chat.messages = std::make_shared<const Json>(
      engine::NormalizeMessages(*checked, {.developer_as_system = developer_as_system}));
  chat.tools = CheckTools(tools);
  return chat;
}

}  // namespace tandem::training
