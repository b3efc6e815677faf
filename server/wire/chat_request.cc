#include "server/wire/chat_request.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

// Text of a message, empty when there is none. Parts are joined with line feeds.
Json ReadContent(const Json& message, const std::string& role, const std::string& param) {
  const auto found = message.find("content");
  const auto calls = message.find("tool_calls");
  const bool may_be_absent =
      role == "assistant" && calls != message.end() && calls->is_array() && !calls->empty();
  if (found == message.end() || found->is_null()) {
    // Templates search and print content without asking; null would show up as the word "None".
    if (may_be_absent || (role == "assistant" && message.contains("refusal"))) return "";
    throw MissingField(param + ".content");
  }
  const std::string content_param = param + ".content";
  if (found->is_string()) return *found;
  if (!found->is_array()) {
    throw WrongType(content_param, "a string or an array of text parts", *found);
  }
  if (found->empty()) throw BadValue(content_param, content_param + " must not be an empty array");
  std::string text;
  for (size_t i = 0; i < found->size(); ++i) {
    const std::string part_param = content_param + "[" + std::to_string(i) + "]";
    const Json& part = (*found)[i];
    if (!part.is_object()) throw WrongType(part_param, "an object", part);
    FieldReader reader(part, part_param);
    const std::string type = reader.RequiredString("type");
    std::string part_text;
    if (type == "text") {
      part_text = reader.RequiredString("text");
    } else if (type == "refusal" && role == "assistant") {
      part_text = reader.RequiredString("refusal");
    } else if (type == "image_url" || type == "input_audio" || type == "file") {
      std::string refusal = part_param;
      refusal.append(" of type '")
          .append(type)
          .append("' is not served: this server takes text only");
      throw Error(ErrorCode::kUnsupported, refusal)
          .WithParam(part_param)
          .WithReason("unsupported_value");
    } else {
      throw BadValue(part_param + ".type",
                     part_param + ".type is unknown: " + ShortForm(Json(type)));
    }
    if (i > 0) text += "\n";
    text += part_text;
  }
  return text;
}

Json ReadToolCalls(const Json& calls, const std::string& param) {
  if (!calls.is_array()) throw WrongType(param, "an array", calls);
  Json out = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string call_param = param + "[" + std::to_string(i) + "]";
    if (!calls[i].is_object()) throw WrongType(call_param, "an object", calls[i]);
    FieldReader call(calls[i], call_param);
    const Json* function = call.Object("function");
    if (function == nullptr) throw MissingField(call_param + ".function");
    FieldReader members(*function, call_param + ".function");
    const std::string name = members.RequiredString("name");
    const std::string arguments = members.RequiredString("arguments");
    // Templates iterate over arguments; what is no JSON object stays the text it was.
    Json parsed;
    try {
      parsed = ParseJsonObject(arguments);
    } catch (const Error&) {
      parsed = arguments;
    }
    Json entry;
    entry["id"] = call.String("id").value_or("");
    entry["type"] = "function";
    entry["function"]["name"] = name;
    entry["function"]["arguments"] = std::move(parsed);
    out.push_back(std::move(entry));
  }
  return out;
}

Json ReadMessage(const Json& message, const std::string& param, const ModelLimits& limits) {
  if (!message.is_object()) throw WrongType(param, "an object", message);
  FieldReader reader(message, param);
  std::string role = reader.RequiredString("role");
  static constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user",
                                                             "assistant", "tool"};
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    throw BadValue(param + ".role",
                   param + ".role must be system, developer, user, assistant or tool, got " +
                       ShortForm(Json(role)));
  }
  Json out;
  out["role"] = role == "developer" && !limits.knows_developer ? "system" : role;
  out["content"] = ReadContent(message, role, param);
  if (const auto name = reader.String("name")) out["name"] = *name;
  if (role == "assistant") {
    if (const auto reasoning = reader.String("reasoning_content")) {
      out["reasoning_content"] = *reasoning;
    }
    if (const auto refusal = reader.String("refusal"); refusal && out["content"] == "") {
      out["content"] = *refusal;
    }
    if (const Json* calls = reader.Array("tool_calls"); calls != nullptr && !calls->empty()) {
      out["tool_calls"] = ReadToolCalls(*calls, param + ".tool_calls");
    }
  }
  if (role == "tool") out["tool_call_id"] = reader.RequiredString("tool_call_id");
  return out;
}

std::shared_ptr<const Json> ReadTemplateKwargs(FieldReader& reader) {
  const Json* given = reader.Object("chat_template_kwargs");
  const auto effort = reader.String("reasoning_effort");
  if (given == nullptr && !effort) return nullptr;
  Json out = given != nullptr ? *given : Json::object();
  for (const char* reserved :
       {"messages", "tools", "bos_token", "eos_token", "add_generation_prompt"}) {
    if (out.contains(reserved)) {
      throw BadValue("chat_template_kwargs", std::string("chat_template_kwargs may not set '") +
                                                 reserved + "': it is the server's to set");
    }
  }
  if (effort) {
    static constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                                 "high", "xhigh",   "max"};
    if (std::find(kEfforts.begin(), kEfforts.end(), *effort) == kEfforts.end()) {
      throw BadValue("reasoning_effort",
                     "reasoning_effort must be none, minimal, low, medium, high, xhigh or max, "
                     "got " +
                         ShortForm(Json(*effort)));
    }
    if (!out.contains("reasoning_effort")) out["reasoning_effort"] = *effort;
    if (*effort == "none" && !out.contains("enable_thinking")) out["enable_thinking"] = false;
  }
  return std::make_shared<const Json>(std::move(out));
}

}  // namespace

std::shared_ptr<const Json> ParseMessages(const Json& messages, const ModelLimits& limits) {
  if (!messages.is_array()) throw WrongType("messages", "an array", messages);
  if (messages.empty() || messages.size() > 4096) {
    throw BadValue("messages",
                   "messages must have 1 to 4096 entries, got " + std::to_string(messages.size()));
  }
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    out.push_back(ReadMessage(messages[i], "messages[" + std::to_string(i) + "]", limits));
  }
  return std::make_shared<const Json>(std::move(out));
}

void RefuseTools(FieldReader& reader) {
  const Json* tools = reader.Array("tools");
  if (tools != nullptr && !tools->empty()) {
    throw UnsupportedField("tools", "tools are not served by this version yet");
  }
  if (const Json* choice = reader.Any("tool_choice")) {
    if (!choice->is_string() || (*choice != "none" && *choice != "auto")) {
      throw BadValue("tool_choice", "tool_choice other than none or auto needs tools");
    }
  }
  reader.Bool("parallel_tool_calls");
}

void ReadTemplateFields(FieldReader& reader, ChatPrompt& prompt) {
  const auto add_prompt = reader.Bool("add_generation_prompt");
  prompt.continue_final_message = reader.Bool("continue_final_message").value_or(false);
  if (prompt.continue_final_message) {
    if (add_prompt.value_or(false)) {
      throw BadValue("continue_final_message",
                     "continue_final_message and add_generation_prompt exclude each other");
    }
    const Json& last = prompt.messages->back();
    if (last["role"] != "assistant" || last["content"] == "") {
      throw BadValue("continue_final_message",
                     "continue_final_message needs a last message of the assistant with text");
    }
  }
  prompt.add_generation_prompt = add_prompt.value_or(!prompt.continue_final_message);
  prompt.template_kwargs = ReadTemplateKwargs(reader);
}

ChatRequest ParseChatRequest(const Json& body, const ModelLimits& limits) {
  FieldReader reader(body);
  reader.Accept({"model"});
  ChatRequest request;
  const Json* messages = reader.Any("messages");
  if (messages == nullptr) throw MissingField("messages");
  request.prompt.messages = ParseMessages(*messages, limits);

  const auto max_completion = reader.Int("max_completion_tokens", 1, limits.max_model_len);
  const auto max_tokens = reader.Int("max_tokens", 1, limits.max_model_len);
  request.max_tokens = max_completion ? max_completion : max_tokens;
  request.generation = ReadSamplingFields(reader, limits, request.max_tokens);
  const bool logprobs = reader.Bool("logprobs").value_or(false);
  const auto top_logprobs = reader.Int("top_logprobs", 0, 20);
  if (top_logprobs && *top_logprobs > 0 && !logprobs) {
    throw BadValue("top_logprobs", "top_logprobs in [0, 20] needs logprobs: true, got " +
                                       std::to_string(*top_logprobs) + " without it");
  }
  if (logprobs) request.top_logprobs = static_cast<int>(top_logprobs.value_or(0));
  ReadPromptLogprobs(reader, request.generation);
  RefuseStructuredOutput(reader);
  RefuseTools(reader);
  ReadStreamFields(reader, request.generation);
  ReadTemplateFields(reader, request.prompt);
  ReadOutputFields(reader, request.generation);
  ReadFieldsWithoutEffect(reader, GenerationRoute::kChat);
  request.ignored = reader.unknown();
  return request;
}

}  // namespace tandem::server
