#include "server/wire/responses/responses_tools.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostResponseTools = 512;
constexpr size_t kMostIgnoredTools = 32;

// Beginnings of the types: some carry a version, as web_search_2025_08_26.
constexpr std::array<std::string_view, 11> kHostedTools = {
    "web_search",       "file_search", "computer",    "code_interpreter",
    "image_generation", "mcp",         "local_shell", "apply_patch",
    "tool_search",      "x_search",    "shell",
};

Error UnsupportedTool(const std::string& param, const std::string& type) {
  return Error(ErrorCode::kUnsupported,
               param + " " + ShortForm(Json(type)) +
                   " names a tool that runs at OpenAI, and this server runs no tools: declare a "
                   "tool of type function")
      .WithParam(param)
      .WithReason("unsupported_value");
}

// The format of a custom tool, as chat completions nest it.
Json CustomFormat(const Json& format, const std::string& at) {
  FieldReader members(format, at);
  const std::string type = members.RequiredString("type");
  if (type == "text") return {{"type", "text"}};
  if (type != "grammar") {
    throw BadValue(at + ".type",
                   at + ".type must be text or grammar, got " + ShortForm(Json(type)));
  }
  const std::string syntax = members.RequiredString("syntax");
  if (syntax != "lark" && syntax != "regex") {
    throw BadValue(at + ".syntax",
                   at + ".syntax must be lark or regex, got " + ShortForm(Json(syntax)));
  }
  return {{"type", "grammar"},
          {"grammar", {{"syntax", syntax}, {"definition", members.RequiredString("definition")}}}};
}

class ToolList {
 public:
  void Add(const Json& tool, const std::string& at, const std::string& name_space) {
    if (!tool.is_object()) throw WrongType(at, "an object", tool);
    FieldReader members(tool, at);
    const std::string type = members.RequiredString("type");
    if (type == "function") {
      echo().push_back(Function(members, at, name_space));
    } else if (type == "custom") {
      echo().push_back(Custom(members, at, name_space));
    } else if (type == "namespace" && name_space.empty()) {
      AddNamespace(members, at);
    } else if (IsHostedTool(type)) {
      auto& all = tools_.ignored;
      if (all.size() < kMostIgnoredTools && std::find(all.begin(), all.end(), type) == all.end()) {
        all.push_back(type);
      }
    } else {
      throw BadValue(at + ".type", at + ".type must be function, custom" +
                                       (name_space.empty() ? " or namespace" : "") + ", got " +
                                       ShortForm(Json(type)));
    }
    if (tools_.chat.size() > kMostResponseTools) {
      throw BadValue("tools",
                     "tools must have at most " + std::to_string(kMostResponseTools) + " entries");
    }
  }

  ResponsesTools Take() { return std::move(tools_); }

 private:
  std::vector<Json>& echo() { return within_ == nullptr ? tools_.echoed : *within_; }

  void AddNamespace(FieldReader& members, const std::string& at) {
    const std::string name = members.RequiredString("name");
    if (name.empty()) throw BadValue(at + ".name", at + ".name must not be empty");
    const auto description = members.String("description");
    const Json* inner = members.Array("tools");
    if (inner == nullptr) throw MissingField(at + ".tools");
    std::vector<Json> echoed;
    within_ = &echoed;
    for (size_t i = 0; i < inner->size(); ++i) {
      Add((*inner)[i], at + ".tools[" + std::to_string(i) + "]", name);
    }
    within_ = nullptr;
    Json out = {{"type", "namespace"}, {"name", name}};
    if (description) out["description"] = *description;
    out["tools"] = std::move(echoed);
    tools_.echoed.push_back(std::move(out));
  }

  Json Function(FieldReader& members, const std::string& at, const std::string& name_space) {
    const std::string name = members.RequiredString("name");
    const auto description = members.String("description");
    const Json* parameters = members.Object("parameters");
    const auto strict = members.Bool("strict");
    Json function = {{"name", Declare(name, name_space, false)}};
    if (description) function["description"] = *description;
    if (parameters != nullptr) function["parameters"] = *parameters;
    if (strict) function["strict"] = *strict;
    tools_.chat.push_back({{"type", "function"}, {"function", std::move(function)}});
    tools_.paths.push_back(at);
    return {{"type", "function"},
            {"name", name},
            {"description", description ? Json(*description) : Json()},
            {"parameters", parameters != nullptr ? *parameters : Json()},
            {"strict", strict.value_or(true)}};
  }

  Json Custom(FieldReader& members, const std::string& at, const std::string& name_space) {
    const std::string name = members.RequiredString("name");
    const auto description = members.String("description");
    const Json* format = members.Object("format");
    Json custom = {{"name", Declare(name, name_space, true)}};
    if (description) custom["description"] = *description;
    if (format != nullptr) custom["format"] = CustomFormat(*format, at + ".format");
    tools_.chat.push_back({{"type", "custom"}, {"custom", std::move(custom)}});
    tools_.paths.push_back(at);
    Json out = {{"type", "custom"}, {"name", name}};
    if (description) out["description"] = *description;
    out["format"] = format != nullptr ? *format : Json{{"type", "text"}};
    return out;
  }

  // Returns the name that the model sees. Chat completions refuse a repeated name.
  std::string Declare(const std::string& name, const std::string& name_space, bool is_custom) {
    std::string seen = name;
    if (tools_.by_chat_name.contains(name) && !name_space.empty()) seen = name_space + "__" + name;
    tools_.by_chat_name.emplace(seen, ResponsesTool{name, name_space, is_custom});
    return seen;
  }

  ResponsesTools tools_;
  std::vector<Json>* within_ = nullptr;  // the echoed tools of the current namespace
};

// {"type": "function", "name": …} as chat completions nest it.
Json NestChoice(const Json& choice, const std::string& at, const ResponsesTools& tools) {
  if (!choice.is_object()) throw WrongType(at, "an object", choice);
  FieldReader members(choice, at);
  const std::string type = members.RequiredString("type");
  if (IsHostedTool(type)) throw UnsupportedTool(at + ".type", type);
  if (type != "function" && type != "custom") {
    throw BadValue(at + ".type",
                   at + ".type must be function or custom, got " + ShortForm(Json(type)));
  }
  const std::string name = members.RequiredString("name");
  const std::string seen =
      tools.ChatName(name, members.String("namespace").value_or(std::string()));
  const auto found = tools.by_chat_name.find(seen);
  if (found == tools.by_chat_name.end() || found->second.is_custom != (type == "custom")) {
    throw BadValue(at + ".name", at + ".name must name one of the tools of type " + type +
                                     ", got " + ShortForm(Json(name)));
  }
  return {{"type", type}, {type, {{"name", seen}}}};
}

Json AllowedTools(FieldReader& members, const ResponsesTools& tools) {
  const std::string mode = members.RequiredString("mode");
  if (mode != "auto" && mode != "required") {
    throw BadValue("tool_choice.mode",
                   "tool_choice.mode must be auto or required, got " + ShortForm(Json(mode)));
  }
  const Json* listed = members.Array("tools");
  if (listed == nullptr) throw MissingField("tool_choice.tools");
  Json chosen = Json::array();
  for (size_t i = 0; i < listed->size(); ++i) {
    const Json& one = (*listed)[i];
    const bool is_hosted = one.is_object() && one.contains("type") && one["type"].is_string() &&
                           IsHostedTool(one["type"].get_ref<const std::string&>());
    if (is_hosted) continue;
    chosen.push_back(NestChoice(one, "tool_choice.tools[" + std::to_string(i) + "]", tools));
  }
  return {{"type", "allowed_tools"}, {"allowed_tools", {{"mode", mode}, {"tools", chosen}}}};
}

}  // namespace

bool IsHostedTool(std::string_view type) {
  return std::any_of(kHostedTools.begin(), kHostedTools.end(),
                     [&](std::string_view hosted) { return type.starts_with(hosted); });
}

std::string ResponsesTools::ChatName(const std::string& name, const std::string& name_space) const {
  for (const auto& [seen, tool] : by_chat_name) {
    if (tool.name == name && tool.name_space == name_space) return seen;
  }
  // A client may leave the namespace out.
  for (const auto& [seen, tool] : by_chat_name) {
    if (tool.name == name && name_space.empty()) return seen;
  }
  return name;
}

ResponsesTools ReadResponsesTools(FieldReader& reader) {
  ToolList list;
  if (const Json* tools = reader.Array("tools")) {
    for (size_t i = 0; i < tools->size(); ++i) {
      list.Add((*tools)[i], "tools[" + std::to_string(i) + "]", "");
    }
  }
  return list.Take();
}

Json TranslateToolChoice(const Json& choice, const ResponsesTools& tools) {
  if (choice.is_string()) {
    const auto& name = choice.get_ref<const std::string&>();
    if (name == "none" || name == "auto" || name == "required") return choice;
    throw BadValue("tool_choice", "tool_choice must be none, auto, required or an object, got " +
                                      ShortForm(choice));
  }
  if (!choice.is_object()) throw WrongType("tool_choice", "a string or an object", choice);
  FieldReader members(choice, "tool_choice");
  if (members.RequiredString("type") == "allowed_tools") return AllowedTools(members, tools);
  return NestChoice(choice, "tool_choice", tools);
}

}  // namespace tandem::server
