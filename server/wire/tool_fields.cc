#include "server/wire/tool_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

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

// Checks one entry of `tools`. Returns its name.
std::string CheckTool(const Json& tool, const std::string& path) {
  if (!tool.is_object()) throw WrongType(path, "an object", tool);
  FieldReader members(tool, path);
  const std::string type = members.RequiredString("type");
  if (type == "custom") {
    throw UnsupportedValue(path + ".type",
                           path +
                               " has type 'custom', which needs a grammar, and this version has "
                               "none: declare a tool of type function");
  }
  if (type != "function") {
    throw UnsupportedValue(path + ".type", path + ".type must be function, got " +
                                               ShortForm(Json(type)) +
                                               ": the server runs no tools itself");
  }
  const std::string at = path + ".function";
  FieldReader function(RequiredObject(members, "function", path), at);
  std::string name = function.RequiredString("name");
  if (name.empty() || name.size() > kMostNameBytes ||
      name.find_first_not_of(kNameBytes) != std::string::npos) {
    throw BadValue(at + ".name", at + ".name must be 1 to 64 characters of [A-Za-z0-9_-], got " +
                                     ShortForm(Json(name)));
  }
  function.String("description");
  function.Object("parameters");
  function.Bool("strict");
  return name;
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
      throw BadValue(path + ".function.name", "tools must have different names, and " +
                                                  ShortForm(Json(name)) + " occurs twice");
    }
    names.insert(std::move(name));
  }
  return names;
}

// The one place that decides what forces a call.
[[noreturn]] void RefuseForcedCall(const std::string& choice) {
  throw UnsupportedField("tool_choice", "tool_choice " + choice +
                                            " forces a call, which this version cannot do: use "
                                            "auto and check the answer");
}

// The name in {"type": "function", "function": {"name": …}}. Throws unless it is declared.
std::string NamedTool(const Json& choice, const std::string& path,
                      const std::set<std::string>& names) {
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
  if (!names.contains(name)) {
    throw BadValue(at + ".name",
                   at + ".name must name one of the tools, got " + ShortForm(Json(name)));
  }
  return name;
}

// The tools of {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": […]}}.
Json AllowedTools(const Json& choice, const Json& tools, const std::set<std::string>& names) {
  const std::string path = "tool_choice.allowed_tools";
  FieldReader members(choice, "tool_choice");
  FieldReader allowed(RequiredObject(members, "allowed_tools", "tool_choice"), path);
  const std::string mode = allowed.RequiredString("mode");
  const Json* listed = allowed.Array("tools");
  if (listed == nullptr) throw MissingField(path + ".tools");
  std::set<std::string> chosen;
  for (size_t i = 0; i < listed->size(); ++i) {
    chosen.insert(NamedTool((*listed)[i], path + ".tools[" + std::to_string(i) + "]", names));
  }
  if (mode == "required") RefuseForcedCall("allowed_tools with mode required");
  if (mode != "auto") {
    throw BadValue(path + ".mode",
                   path + ".mode must be auto or required, got " + ShortForm(Json(mode)));
  }
  Json out = Json::array();
  for (const Json& tool : tools) {
    if (chosen.contains(tool["function"]["name"].get<std::string>())) out.push_back(tool);
  }
  return out;
}

void CheckChoiceWithoutTools(const Json* choice) {
  if (choice == nullptr || IsString(*choice, "none") || IsString(*choice, "auto")) return;
  throw BadValue("tool_choice", "tool_choice must be none or auto without tools");
}

ToolFields ReadToolsAndChoice(FieldReader& reader) {
  ToolFields fields;
  const Json* tools = reader.Array("tools");
  const std::set<std::string> names =
      tools != nullptr ? CheckTools(*tools) : std::set<std::string>();
  const Json* choice = reader.Any("tool_choice");
  if (names.empty()) {
    CheckChoiceWithoutTools(choice);
    return fields;
  }
  if (choice != nullptr && IsString(*choice, "none")) return fields;
  fields.tools = std::make_shared<const Json>(*tools);
  fields.callable = fields.tools;
  if (choice == nullptr || IsString(*choice, "auto")) return fields;
  if (IsString(*choice, "required")) RefuseForcedCall("required");
  if (choice->is_string()) {
    throw BadValue("tool_choice", "tool_choice must be none, auto, required or an object, got " +
                                      ShortForm(*choice));
  }
  if (choice->is_object() && choice->contains("type") &&
      IsString((*choice)["type"], "allowed_tools")) {
    fields.callable = std::make_shared<const Json>(AllowedTools(*choice, *tools, names));
    return fields;
  }
  RefuseForcedCall("with the tool " + ShortForm(Json(NamedTool(*choice, "tool_choice", names))));
}

}  // namespace

ToolFields ReadToolFields(FieldReader& reader) {
  ToolFields fields = ReadToolsAndChoice(reader);
  fields.is_parallel = reader.Bool("parallel_tool_calls").value_or(true);
  return fields;
}

}  // namespace tandem::server
