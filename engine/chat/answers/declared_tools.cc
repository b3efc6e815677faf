#include "engine/chat/answers/declared_tools.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/chat/answers/parameter_form.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

const Json* Member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

// Whether the schema names its types and none of them is a string.
bool ExcludesText(const Json& schema) {
  const Json* type = Member(schema, "type");
  if (type == nullptr) return false;
  if (!type->is_array()) return type->is_string() && !IsString(*type, "string");
  return std::none_of(type->begin(), type->end(),
                      [](const Json& one) { return IsString(one, "string"); });
}

// Whether the input is a regex, which stands as JSON where a format writes texts without quotes.
bool IsQuotedInput(const Json& custom) {
  return Member(custom, "format") != nullptr &&
         Member(*Member(custom, "format"), "grammar") != nullptr;
}

}  // namespace

DeclaredTools::DeclaredTools(const Json& tools, bool is_constrained) {
  for (const Json& tool : tools) {
    const Json* custom = Member(tool, "custom");
    const Json* function = custom != nullptr ? custom : Member(tool, "function");
    const Json* name = function != nullptr ? Member(*function, "name") : nullptr;
    if (name == nullptr || !name->is_string()) continue;
    Tool& declared = tools_[name->get<std::string>()];
    declared.is_custom = custom != nullptr;
    if (custom != nullptr) {
      if (HasRawInput(*custom)) raw_inputs_.push_back(name->get<std::string>());
      if (IsQuotedInput(*custom)) declared.json_parameters.insert("input");
      continue;
    }
    const Json* parameters = Member(*function, "parameters");
    const Json* properties = parameters != nullptr ? Member(*parameters, "properties") : nullptr;
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, schema] : properties->items()) {
      const bool is_json = is_constrained ? !FormOf(schema).is_text : ExcludesText(schema);
      if (is_json) declared.json_parameters.insert(key);
    }
  }
}

bool DeclaredTools::IsCustom(std::string_view name) const {
  const auto found = tools_.find(name);
  return found != tools_.end() && found->second.is_custom;
}

bool DeclaredTools::IsJson(std::string_view tool, std::string_view parameter) const {
  const auto found = tools_.find(tool);
  return found != tools_.end() && found->second.json_parameters.contains(parameter);
}

bool HasRawInput(const Json& custom) {
  const Json* format = Member(custom, "format");
  const Json* grammar = format != nullptr ? Member(*format, "grammar") : nullptr;
  const Json* syntax = grammar != nullptr ? Member(*grammar, "syntax") : nullptr;
  return syntax != nullptr && IsString(*syntax, "lark");
}

std::string RawInputMark(std::string_view name) {
  return "<tool_input name=\"" + std::string(name) + "\">\n";
}

}  // namespace tandem::engine
