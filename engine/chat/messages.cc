#include "engine/chat/messages.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownBytes = 40;  // of a bad value, in error messages

Error Missing(const std::string& at) {
  return Error(ErrorCode::kInvalidArgument, at + " is required")
      .WithParam(at)
      .WithReason("missing_required_parameter");
}

Error WrongType(const std::string& at, std::string_view wanted, const Json& got) {
  return Error(ErrorCode::kInvalidArgument,
               at + " must be " + std::string(wanted) + ", got " + got.type_name())
      .WithParam(at)
      .WithReason("invalid_type");
}

Error BadValue(const std::string& at, const std::string& what) {
  return Error(ErrorCode::kInvalidArgument, at + " " + what)
      .WithParam(at)
      .WithReason("invalid_value");
}

std::string Index(const std::string& at, size_t i) { return at + "[" + std::to_string(i) + "]"; }

// The member; null when it is absent or JSON null.
const Json* Find(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// The member's text; null when it is absent.
const std::string* FindText(const Json& object, const char* key, const std::string& at) {
  const Json* value = Find(object, key);
  if (value == nullptr) return nullptr;
  if (!value->is_string()) throw WrongType(at + "." + key, "a string", *value);
  return &value->get_ref<const std::string&>();
}

const std::string& Text(const Json& object, const char* key, const std::string& at) {
  const std::string* text = FindText(object, key, at);
  if (text == nullptr) throw Missing(at + "." + key);
  return *text;
}

// Appends without searching for an equal key, which would be quadratic in large objects.
Json& Append(Json& object, std::string key, Json value) {
  auto& members = object.get_ref<Json::object_t&>();
  return members.emplace_back(std::move(key), std::move(value)).second;
}

const std::string& PartText(const Json& part, bool is_assistant, const std::string& at) {
  if (!part.is_object()) throw WrongType(at, "an object", part);
  const std::string& type = Text(part, "type", at);
  if (type == "text") return Text(part, "text", at);
  if (type == "refusal" && is_assistant) return Text(part, "refusal", at);
  if (type == "image_url" || type == "input_audio" || type == "file") {
    throw Error(ErrorCode::kUnsupported,
                at + " has type '" + type + "': this model takes text only")
        .WithParam(at)
        .WithReason("unsupported_value");
  }
  throw BadValue(at + ".type", "must be text" + std::string(is_assistant ? " or refusal" : "") +
                                   ", got " + Quoted(type, kShownBytes));
}

std::string JoinParts(const Json& parts, bool is_assistant, const std::string& at) {
  if (parts.empty()) throw BadValue(at, "must not be an empty list");
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += '\n';
    text += PartText(parts[i], is_assistant, Index(at, i));
  }
  return text;
}

// The content alone; nullopt when it is absent.
std::optional<std::string> ReadContent(const Json& message, bool is_assistant,
                                       const std::string& at) {
  const Json* content = Find(message, "content");
  if (content == nullptr) return std::nullopt;
  if (content->is_string()) return content->get<std::string>();
  if (content->is_array()) return JoinParts(*content, is_assistant, at + ".content");
  throw WrongType(at + ".content", "a string or a list of text parts", *content);
}

// The thought under any of its names; null when there is none.
const std::string* FindThought(const Json& message, const std::string& at) {
  const std::string* thought = nullptr;
  for (const char* key : {"reasoning_content", "reasoning", "thinking"}) {
    const std::string* given = FindText(message, key, at);
    if (given == nullptr) continue;
    if (thought != nullptr && *thought != *given) {
      throw BadValue(at + "." + key,
                     "differs from the reasoning under another name; reasoning_content, reasoning "
                     "and thinking are aliases: give one of them");
    }
    thought = given;
  }
  return thought;
}

// The bound on the JSON values that the arguments of all calls may spell.
class ArgumentBudget {
 public:
  explicit ArgumentBudget(int64_t max_values) : max_values_(max_values), left_(max_values) {}

  // Charges an upper bound of the values in `text`, before they are built.
  void Charge(std::string_view text, const std::string& at) {
    left_ -= 1 + std::count_if(text.begin(), text.end(),
                               [](char c) { return c == ',' || c == '[' || c == '{'; });
    if (left_ >= 0) return;
    throw BadValue(at, "has too many values: the arguments of all calls may have " +
                           std::to_string(max_values_));
  }

 private:
  const int64_t max_values_;
  int64_t left_;
};

// Text that is not a JSON object is valid input here, and stays text.
Json ReadArguments(const Json& given, ArgumentBudget& budget, const std::string& at) {
  if (given.is_object()) return given;
  if (!given.is_string()) throw WrongType(at, "a JSON object or the text of one", given);
  const auto& text = given.get_ref<const std::string&>();
  budget.Charge(text, at);
  Json parsed;
  ErrorOf([&] { parsed = ParseUntrustedJson(text, at, JsonLimits{.keep_wide_integers = true}); });
  return parsed.is_object() ? parsed : given;
}

// A call of a custom tool, as a function with the argument `input`.
Json ReadCustomCall(const Json& call, const std::string& at) {
  const Json* custom = Find(call, "custom");
  const std::string custom_at = at + ".custom";
  if (custom == nullptr) throw Missing(custom_at);
  if (!custom->is_object()) throw WrongType(custom_at, "an object", *custom);
  const std::string& name = Text(*custom, "name", custom_at);
  if (name.empty()) throw BadValue(custom_at + ".name", "must not be empty");
  const std::string* id = FindText(call, "id", at);
  Json out = Json::object();
  if (id != nullptr) Append(out, "id", *id);
  Append(out, "type", "function");
  Append(out, "function",
         {{"name", name}, {"arguments", {{"input", Text(*custom, "input", custom_at)}}}});
  return out;
}

Json ReadToolCall(const Json& call, ArgumentBudget& budget, const std::string& at) {
  if (!call.is_object()) throw WrongType(at, "an object", call);
  const std::string* type = FindText(call, "type", at);
  if (type != nullptr && *type == "custom") return ReadCustomCall(call, at);
  if (type != nullptr && *type != "function") {
    throw BadValue(at + ".type", "must be function or custom, got " + Quoted(*type, kShownBytes));
  }
  const Json* function = Find(call, "function");
  const std::string function_at = at + ".function";
  if (function == nullptr) throw Missing(function_at);
  if (!function->is_object()) throw WrongType(function_at, "an object", *function);
  if (Text(*function, "name", function_at).empty()) {
    throw BadValue(function_at + ".name", "must not be empty");
  }
  const Json* arguments = Find(*function, "arguments");
  if (arguments == nullptr) throw Missing(function_at + ".arguments");
  FindText(call, "id", at);  // checks its type

  Json out = Json::object();
  if (Find(call, "type") == nullptr) Append(out, "type", "function");
  for (const auto& [key, value] : call.items()) {
    if (value.is_null()) continue;
    if (key != "function") {
      Append(out, key, value);
      continue;
    }
    Json& members = Append(out, key, Json::object());
    for (const auto& [name, member] : value.items()) {
      if (member.is_null()) continue;
      const bool is_arguments = name == "arguments";
      Append(members, name,
             is_arguments ? ReadArguments(member, budget, function_at + ".arguments") : member);
    }
  }
  return out;
}

// The tool calls; nullopt when there are none.
std::optional<Json> ReadToolCalls(const Json& message, bool is_assistant, ArgumentBudget& budget,
                                  const std::string& at) {
  const Json* calls = Find(message, "tool_calls");
  if (calls == nullptr) return std::nullopt;
  if (!calls->is_array()) throw WrongType(at + ".tool_calls", "a list of calls", *calls);
  if (calls->empty()) return std::nullopt;
  if (!is_assistant)
    throw BadValue(at + ".tool_calls", "are allowed only in messages of the assistant");
  Json out = Json::array();
  for (size_t i = 0; i < calls->size(); ++i) {
    out.push_back(ReadToolCall((*calls)[i], budget, Index(at + ".tool_calls", i)));
  }
  return out;
}

std::string ReadRole(const Json& message, const std::string& at) {
  const std::string& role = Text(message, "role", at);
  if (std::find(kMessageRoles.begin(), kMessageRoles.end(), role) == kMessageRoles.end()) {
    throw BadValue(at + ".role", "must be system, developer, user, assistant or tool, got " +
                                     Quoted(role, kShownBytes));
  }
  return role;
}

// The content followed by the refusal. Throws for a message that has no text and nothing else.
std::string ReadText(const Json& message, bool is_assistant, bool has_calls,
                     const std::string* thought, const std::string& at) {
  std::optional<std::string> content = ReadContent(message, is_assistant, at);
  const std::string* refusal = is_assistant ? FindText(message, "refusal", at) : nullptr;
  if (refusal != nullptr && !refusal->empty()) {
    if (!content || content->empty()) return *refusal;
    return *content + "\n" + *refusal;
  }
  const bool may_be_absent = has_calls || refusal != nullptr || (thought && !thought->empty());
  if (!content && !may_be_absent) throw Missing(at + ".content");
  return std::move(content).value_or("");
}

Json NormalizeMessage(const Json& message, const std::string& at, const NormalizeOptions& options,
                      ArgumentBudget& budget) {
  if (!message.is_object()) throw WrongType(at, "an object", message);
  const std::string role = ReadRole(message, at);
  const bool is_assistant = role == "assistant";
  if (Find(message, "function_call") != nullptr) {
    throw BadValue(at + ".function_call", "is the legacy form of a tool call; use tool_calls");
  }
  std::optional<Json> calls = ReadToolCalls(message, is_assistant, budget, at);
  const std::string* thought = is_assistant ? FindThought(message, at) : nullptr;
  std::string text = ReadText(message, is_assistant, calls.has_value(), thought, at);
  FindText(message, "name", at);
  const std::string* call_id = FindText(message, "tool_call_id", at);
  if (role == "tool" && call_id == nullptr && options.needs_tool_call_ids) {
    throw Missing(at + ".tool_call_id");
  }

  Json out = Json::object();
  bool has_content = false;
  for (const auto& [key, value] : message.items()) {
    if (value.is_null() || key == "weight" || (key == "refusal" && is_assistant)) continue;
    if (key == "role") {
      Append(out, key, role == "developer" && options.developer_as_system ? "system" : role);
    } else if (key == "content") {
      has_content = true;
      Append(out, key, std::move(text));
    } else if (key == "tool_calls") {
      if (calls) Append(out, key, std::move(*calls));
    } else {
      Append(out, key, value);
    }
  }
  if (!has_content) Append(out, "content", std::move(text));
  if (thought != nullptr && Find(message, "reasoning_content") == nullptr) {
    Append(out, "reasoning_content", *thought);
  }
  return out;
}

}  // namespace

Json NormalizeMessages(const Json& messages, const NormalizeOptions& options) {
  if (!messages.is_array()) throw WrongType(options.path, "a list of messages", messages);
  ArgumentBudget budget(options.max_argument_values);
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    out.push_back(NormalizeMessage(messages[i], Index(options.path, i), options, budget));
  }
  return out;
}

}  // namespace tandem::engine
