#include "engine/chat/answers/declared_tools.h"

#include <algorithm>
#include <nlohmann/json.hpp>

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

}  // namespace

DeclaredTools::DeclaredTools(const Json& tools) {
  for (const Json& tool : tools) {
    const Json* function = Member(tool, "function");
    const Json* name = function != nullptr ? Member(*function, "name") : nullptr;
    if (name == nullptr || !name->is_string()) continue;
    auto& json_parameters = tools_[name->get<std::string>()];
    const Json* parameters = Member(*function, "parameters");
    const Json* properties = parameters != nullptr ? Member(*parameters, "properties") : nullptr;
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, schema] : properties->items()) {
      if (ExcludesText(schema)) json_parameters.insert(key);
    }
  }
}

bool DeclaredTools::IsJson(std::string_view tool, std::string_view parameter) const {
  const auto found = tools_.find(tool);
  return found != tools_.end() && found->second.find(parameter) != found->second.end();
}

}  // namespace tandem::engine
