#include "server/wire/messages_request.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "server/wire/error_body.h"
#include "server/wire/messages_history.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostMessagesTools = 512;
constexpr size_t kMostStops = 16;
constexpr size_t kMostStopBytes = 256;
constexpr size_t kMostToolNameBytes = 64;
constexpr std::string_view kToolNameBytes =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
constexpr std::string_view kSchemaPath = "response_format.json_schema";
constexpr std::string_view kFormatField = "response_format";
constexpr std::string_view kParametersPath = ".function.parameters";

// The member `type`, one of `known`.
std::string ReadType(FieldReader& reader, const std::string& path,
                     std::initializer_list<std::string_view> known) {
  std::string type = reader.RequiredString("type");
  if (std::find(known.begin(), known.end(), type) != known.end()) return type;
  std::string names;
  for (const std::string_view name : known) {
    if (!names.empty()) names += ", ";
    names += name;
  }
  const std::string at = path + ".type";
  throw BadValue(at, at + " must be one of " + names + ", got " + ShortForm(Json(type)));
}

// A thread is a conversation that the server holds: ignoring it would lose the history. Anthropic's
// library knows the reason and then sends all messages by itself.
void RefuseThread(FieldReader& reader) {
  if (reader.Any("thread") == nullptr) return;
  throw Error(ErrorCode::kUnsupported,
              "thread is not supported, because the server holds no conversations: send all "
              "messages")
      .WithParam("thread")
      .WithReason(kThreadUnsupported);
}

void ReadSampling(FieldReader& reader, Json& chat) {
  if (const auto value = reader.Number("temperature", 0, 1)) chat["temperature"] = *value;
  if (const auto value = reader.Number("top_p", 0, 1)) chat["top_p"] = *value;
  if (const auto value = reader.Int("top_k", -1, std::numeric_limits<int32_t>::max())) {
    chat["top_k"] = *value;
  }
  const Json* stops = reader.Array("stop_sequences");
  if (stops == nullptr || stops->empty()) return;
  if (stops->size() > kMostStops) {
    throw BadValue("stop_sequences", "stop_sequences must have at most " +
                                         std::to_string(kMostStops) + " entries, got " +
                                         std::to_string(stops->size()));
  }
  for (size_t i = 0; i < stops->size(); ++i) {
    const Json& stop = (*stops)[i];
    const std::string path = "stop_sequences[" + std::to_string(i) + "]";
    if (!stop.is_string()) throw WrongType(path, "a string", stop);
    const size_t n_bytes = stop.get_ref<const std::string&>().size();
    if (n_bytes == 0 || n_bytes > kMostStopBytes) {
      throw BadValue(path, path + " must have 1 to " + std::to_string(kMostStopBytes) +
                               " bytes, got " + std::to_string(n_bytes));
    }
  }
  chat["stop"] = *stops;
}

// The chat form of one tool of the client.
Json ReadTool(FieldReader& tool, const std::string& path, std::set<std::string>& names) {
  std::string name = tool.RequiredString("name");
  if (name.empty() || name.size() > kMostToolNameBytes ||
      name.find_first_not_of(kToolNameBytes) != std::string::npos) {
    throw BadValue(
        path + ".name",
        path + ".name must be 1 to 64 characters of [A-Za-z0-9_-], got " + ShortForm(Json(name)));
  }
  if (!names.insert(name).second) {
    throw BadValue(path + ".name", path + ".name repeats " + ShortForm(Json(name)) +
                                       ": tools must have different names");
  }
  const Json* schema = tool.Object("input_schema");
  if (schema == nullptr) throw MissingField(path + ".input_schema");
  Json out = Json::object();
  out["type"] = "function";
  Json& function = out["function"];
  function["name"] = std::move(name);
  if (const auto text = tool.String("description")) function["description"] = *text;
  function["parameters"] = *schema;
  if (const auto strict = tool.Bool("strict")) function["strict"] = *strict;
  return out;
}

// Returns the names of the tools in `chat`.
std::set<std::string> ReadTools(FieldReader& reader, MessagesRequest& request, Json& chat) {
  std::set<std::string> names;
  const Json* tools = reader.Array("tools");
  if (tools == nullptr) return names;
  if (tools->size() > kMostMessagesTools) {
    throw BadValue("tools", "tools must have at most " + std::to_string(kMostMessagesTools) +
                                " entries, got " + std::to_string(tools->size()));
  }
  Json out = Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    if (!(*tools)[i].is_object()) throw WrongType(path, "an object", (*tools)[i]);
    FieldReader tool((*tools)[i], path);
    const std::string type = tool.String("type").value_or("custom");
    if (type != "custom") {
      request.ignored_tools.push_back(type);
      continue;
    }
    out.push_back(ReadTool(tool, path, names));
    request.tool_indexes.push_back(i);
  }
  if (!out.empty()) chat["tools"] = std::move(out);
  return names;
}

void ReadToolChoice(FieldReader& reader, const std::set<std::string>& names, Json& chat) {
  const Json* given = reader.Object("tool_choice");
  if (given == nullptr) return;
  FieldReader choice(*given, "tool_choice");
  const std::string type = ReadType(choice, "tool_choice", {"auto", "any", "tool", "none"});
  if (choice.Bool("disable_parallel_tool_use").value_or(false)) {
    chat["parallel_tool_calls"] = false;
  }
  if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
    return;
  }
  if (names.empty()) {
    throw BadValue("tool_choice",
                   "tool_choice " + type +
                       " needs a tool with a name and an input_schema; tools that run on "
                       "Anthropic's servers are left out");
  }
  if (type == "any") {
    chat["tool_choice"] = "required";
    return;
  }
  const std::string name = choice.RequiredString("name");
  if (!names.contains(name)) {
    throw BadValue("tool_choice.name",
                   "tool_choice.name must name one of the tools, got " + ShortForm(Json(name)));
  }
  Json& named = chat["tool_choice"];
  named["type"] = "function";
  named["function"]["name"] = name;
}

// Returns the budget of an enabled thinking.
std::optional<int64_t> ReadThinking(FieldReader& reader, Json& chat) {
  const Json* given = reader.Object("thinking");
  if (given == nullptr) return std::nullopt;
  FieldReader thinking(*given, "thinking");
  const std::string type = ReadType(thinking, "thinking", {"enabled", "disabled", "adaptive"});
  const auto budget = thinking.Int("budget_tokens", 1, std::numeric_limits<int64_t>::max());
  chat["chat_template_kwargs"]["enable_thinking"] = type != "disabled";
  return type == "enabled" ? budget : std::nullopt;
}

void ReadSchema(const Json& given, const std::string& path, Json& chat) {
  FieldReader format(given, path);
  ReadType(format, path, {"json_schema"});
  const Json* schema = format.Any("schema");
  if (schema == nullptr) throw MissingField(path + ".schema");
  Json& out = chat["response_format"];
  out["type"] = "json_schema";
  out["json_schema"]["name"] = "answer";
  out["json_schema"]["schema"] = *schema;
}

// Returns the path of the format, if there is one.
std::string ReadOutputConfig(FieldReader& reader, Json& chat) {
  const Json* old_format = reader.Object("output_format");
  if (old_format != nullptr) ReadSchema(*old_format, "output_format", chat);
  const Json* given = reader.Object("output_config");
  const std::string old_path = old_format != nullptr ? "output_format" : "";
  if (given == nullptr) return old_path;
  FieldReader config(*given, "output_config");
  if (const auto effort = config.String("effort")) {
    static constexpr std::array<std::string_view, 5> kEfforts = {"low", "medium", "high", "xhigh",
                                                                 "max"};
    if (std::find(kEfforts.begin(), kEfforts.end(), *effort) == kEfforts.end()) {
      throw BadValue("output_config.effort",
                     "output_config.effort must be low, medium, high, xhigh or max, got " +
                         ShortForm(Json(*effort)));
    }
    chat["reasoning_effort"] = *effort;
  }
  const Json* format = config.Object("format");
  if (format == nullptr) return old_path;
  if (old_format != nullptr) {
    throw BadValue("output_format", "output_format and output_config.format exclude each other");
  }
  ReadSchema(*format, "output_config.format", chat);
  return "output_config.format";
}

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Chat lists only the kept tools: gives "tools[0]" the index of the request.
std::string WithToolIndex(std::string text, const std::vector<size_t>& indexes) {
  static constexpr std::string_view kList = "tools[";
  const size_t at = text.find(kList);
  if (at == std::string::npos) return text;
  const size_t begin = at + kList.size();
  const size_t end = text.find(']', begin);
  if (end == std::string::npos || end == begin || end - begin > 4) return text;
  size_t index = 0;
  for (size_t i = begin; i < end; ++i) {
    if (text[i] < '0' || text[i] > '9') return text;
    index = index * 10 + static_cast<size_t>(text[i] - '0');
  }
  if (index >= indexes.size()) return text;
  return text.replace(begin, end - begin, std::to_string(indexes[index]));
}

}  // namespace

MessagesRequest ParseMessagesRequest(const Json& body, MessagesRoute route,
                                     const ModelLimits& limits,
                                     const std::function<bool()>& takes_late_system) {
  FieldReader reader(body);
  reader.Accept({"model", "metadata", "service_tier", "cache_control", "context_management"});
  MessagesRequest request;
  Json chat = Json::object();
  Json& messages = chat["messages"];
  messages = Json::array();
  RefuseThread(reader);
  if (ReadMessagesHistory(reader, takes_late_system, messages)) {
    chat["continue_final_message"] = true;
  }

  const auto max_tokens = reader.Int("max_tokens", 1, std::numeric_limits<int64_t>::max());
  if (!max_tokens && route == MessagesRoute::kMessages) throw MissingField("max_tokens");
  if (max_tokens) chat["max_tokens"] = std::min(*max_tokens, limits.max_model_len);
  ReadSampling(reader, chat);
  ReadToolChoice(reader, ReadTools(reader, request, chat), chat);
  request.thinking_budget = ReadThinking(reader, chat);
  request.format_path = ReadOutputConfig(reader, chat);
  if (reader.Bool("stream").value_or(false)) chat["stream"] = true;
  request.ignored = reader.unknown();
  request.chat = std::make_shared<const Json>(std::move(chat));
  return request;
}

std::string InMessagesTerms(std::string text, const MessagesRequest& request) {
  text = WithToolIndex(std::move(text), request.tool_indexes);
  text = Replaced(std::move(text), kParametersPath, ".input_schema");
  if (request.format_path.empty()) return text;
  text = Replaced(std::move(text), kSchemaPath, request.format_path);
  return Replaced(std::move(text), kFormatField, request.format_path);
}

Error InMessagesTerms(const Error& error, const MessagesRequest& request) {
  return Error(error.code(), InMessagesTerms(std::string(error.what()), request))
      .WithParam(InMessagesTerms(error.param(), request))
      .WithReason(error.reason());
}

}  // namespace tandem::server
