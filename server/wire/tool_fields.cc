#include "server/wire/tool_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/constrain/grammar.h"
#include "engine/constrain/text_grammars.h"
#include "engine/io/json.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using engine::IsString;

constexpr size_t kMostTools = 512;
constexpr size_t kMostNameBytes = 64;
constexpr std::string_view kNameBytes =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

Error UnsupportedValue(const std::string& param, const std::string& message) {
  return Error(ErrorCode::kUnsupported, message).WithParam(param).WithReason("unsupported_value");
}

const Json& RequiredObject(FieldReader& reader, std::string_view name, const std::string& path) {
  const Json* object = reader.Object(name);
  if (object == nullptr) throw MissingField(path + "." + std::string(name));
  return *object;
}

void NeedGrammars(const std::string& param) {
  WithContext(
      [&](const Error& error) { return Error(error.code(), error.what()).WithParam(param); },
      [] { engine::RequireLlguidance(); });
}

// Checks {"type": "text"} and {"type": "grammar", "grammar": {"syntax": …, "definition": …}}.
void CheckInputFormat(const Json& format, const std::string& path) {
  FieldReader members(format, path);
  const std::string type = members.RequiredString("type");
  if (type == "text") return;
  if (type != "grammar") {
    throw BadValue(path + ".type",
                   path + ".type must be text or grammar, got " + ShortForm(Json(type)));
  }
  const std::string at = path + ".grammar";
  FieldReader grammar(RequiredObject(members, "grammar", path), at);
  const std::string syntax = grammar.RequiredString("syntax");
  const std::string definition = grammar.RequiredString("definition");
  if (syntax == "lark") {
    engine::LarkGrammar(definition, at + ".definition");
  } else if (syntax == "regex") {
    engine::RegexGrammar(definition, at + ".definition");
  } else {
    throw BadValue(at + ".syntax",
                   at + ".syntax must be lark or regex, got " + ShortForm(Json(syntax)));
  }
  NeedGrammars(path);
}

// Checks one entry of `tools`. Returns its name.
std::string CheckTool(const Json& tool, const std::string& path) {
  if (!tool.is_object()) throw WrongType(path, "an object", tool);
  FieldReader members(tool, path);
  const std::string type = members.RequiredString("type");
  if (type != "function" && type != "custom") {
    throw UnsupportedValue(path + ".type", path + ".type must be function or custom, got " +
                                               ShortForm(Json(type)) +
                                               ": the server runs no tools itself");
  }
  const std::string at = path + "." + type;
  FieldReader function(RequiredObject(members, type, path), at);
  std::string name = function.RequiredString("name");
  if (name.empty() || name.size() > kMostNameBytes ||
      name.find_first_not_of(kNameBytes) != std::string::npos) {
    throw BadValue(at + ".name", at + ".name must be 1 to 64 characters of [A-Za-z0-9_-], got " +
                                     ShortForm(Json(name)));
  }
  function.String("description");
  if (type == "custom") {
    if (const Json* format = function.Object("format")) CheckInputFormat(*format, at + ".format");
    return name;
  }
  function.Object("parameters");
  function.Bool("strict");
  return name;
}

std::string KindOfTool(const Json& tool) { return tool["type"].get<std::string>(); }
std::string NameOfTool(const Json& tool) {
  return tool[KindOfTool(tool)]["name"].get<std::string>();
}

std::set<std::string> CheckTools(const Json& tools) {
  if (tools.size() > kMostTools) {
    throw BadValue("tools", "tools must have at most " + std::to_string(kMostTools) +
                                " entries, got " + std::to_string(tools.size()));
  }
  std::set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    std::string name = CheckTool(tools[i], path);
    if (names.contains(name)) {
      throw BadValue(
          path + "." + KindOfTool(tools[i]) + ".name",
          "tools must have different names, and " + ShortForm(Json(name)) + " occurs twice");
    }
    names.insert(std::move(name));
  }
  return names;
}

// The name in {"type": "function", "function": {"name": …}}. Throws unless a tool of this kind is
// declared.
std::string NamedTool(const Json& choice, const std::string& path, const Json& tools) {
  if (!choice.is_object()) throw WrongType(path, "an object", choice);
  FieldReader members(choice, path);
  const std::string type = members.RequiredString("type");
  if (type != "function" && type != "custom") {
    throw BadValue(path + ".type", path + ".type must be function, custom or allowed_tools, got " +
                                       ShortForm(Json(type)));
  }
  const std::string at = path + "." + type;
  FieldReader named(RequiredObject(members, type, path), at);
  std::string name = named.RequiredString("name");
  if (std::none_of(tools.begin(), tools.end(), [&](const Json& tool) {
        return KindOfTool(tool) == type && NameOfTool(tool) == name;
      })) {
    throw BadValue(at + ".name", at + ".name must name one of the tools of type " + type +
                                     ", got " + ShortForm(Json(name)));
  }
  return name;
}

std::shared_ptr<const Json> Chosen(const Json& tools, const std::set<std::string>& names) {
  Json out = Json::array();
  for (const Json& tool : tools) {
    if (names.contains(NameOfTool(tool))) out.push_back(tool);
  }
  return std::make_shared<const Json>(std::move(out));
}

// {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": […]}}.
void ReadAllowedTools(const Json& choice, ToolFields& fields) {
  const std::string path = "tool_choice.allowed_tools";
  FieldReader members(choice, "tool_choice");
  FieldReader allowed(RequiredObject(members, "allowed_tools", "tool_choice"), path);
  const std::string mode = allowed.RequiredString("mode");
  const Json* listed = allowed.Array("tools");
  if (listed == nullptr) throw MissingField(path + ".tools");
  std::set<std::string> chosen;
  for (size_t i = 0; i < listed->size(); ++i) {
    chosen.insert(
        NamedTool((*listed)[i], path + ".tools[" + std::to_string(i) + "]", *fields.declared));
  }
  if (mode != "auto" && mode != "required") {
    throw BadValue(path + ".mode",
                   path + ".mode must be auto or required, got " + ShortForm(Json(mode)));
  }
  fields.is_forced = mode == "required";
  if (fields.is_forced && chosen.empty()) {
    throw BadValue(path + ".tools", path + ".tools must name a tool, because mode is required");
  }
  fields.callable = Chosen(*fields.declared, chosen);
}

void CheckChoiceWithoutTools(const Json* choice) {
  if (choice == nullptr || IsString(*choice, "none") || IsString(*choice, "auto")) return;
  throw BadValue("tool_choice", "tool_choice must be none or auto without tools");
}

void ReadToolChoice(const Json& choice, ToolFields& fields) {
  if (choice.is_string()) {
    fields.is_forced = IsString(choice, "required");
    if (fields.is_forced || IsString(choice, "auto")) return;
    throw BadValue("tool_choice", "tool_choice must be none, auto, required or an object, got " +
                                      ShortForm(choice));
  }
  if (choice.is_object() && choice.contains("type") && IsString(choice["type"], "allowed_tools")) {
    return ReadAllowedTools(choice, fields);
  }
  fields.callable = Chosen(*fields.declared, {NamedTool(choice, "tool_choice", *fields.declared)});
  fields.is_forced = true;
  fields.is_parallel = false;
}

}  // namespace

ToolFields ReadToolFields(FieldReader& reader) {
  ToolFields fields;
  const Json* tools = reader.Array("tools");
  const bool has_tools = tools != nullptr && !CheckTools(*tools).empty();
  const Json* choice = reader.Any("tool_choice");
  if (!has_tools) {
    CheckChoiceWithoutTools(choice);
  } else if (choice == nullptr || !IsString(*choice, "none")) {
    fields.declared = std::make_shared<const Json>(*tools);
    fields.tools = fields.callable = fields.declared;
    if (choice != nullptr) ReadToolChoice(*choice, fields);
    if (fields.is_forced) NeedGrammars("tool_choice");
  }
  const bool is_parallel = reader.Bool("parallel_tool_calls").value_or(true);
  fields.is_parallel = fields.is_parallel && is_parallel;
  return fields;
}

}  // namespace tandem::server
