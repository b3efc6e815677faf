#include "engine/chat/answers/parameter_form.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// Keywords that do not restrict a text, and those that FormOf reads.
constexpr std::array<std::string_view, 11> kHarmless = {
    "type",     "enum",     "const",      "title",    "description", "default",
    "examples", "$comment", "deprecated", "readOnly", "writeOnly"};

// Texts that look the same with line breaks around them, and hold no mark.
bool IsSimple(const Json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return !text.empty() && std::none_of(text.begin(), text.end(), [](char byte) {
    return static_cast<unsigned char>(byte) < 0x20 || byte == '<' || byte == '\x7f';
  });
}

}  // namespace

ParameterForm FormOf(const Json& schema) {
  if (schema.is_boolean()) return {.is_text = true, .choices = {}};
  if (!schema.is_object()) return {};
  for (const auto& [key, value] : schema.items()) {
    if (std::find(kHarmless.begin(), kHarmless.end(), key) == kHarmless.end()) return {};
  }
  if (schema.contains("type") && !IsString(schema["type"], "string")) return {};
  Json choices = schema.contains("const") ? Json::array({schema["const"]}) : Json::array();
  if (schema.contains("enum")) {
    if (!choices.empty() || !schema["enum"].is_array() || schema["enum"].empty()) return {};
    choices = schema["enum"];
  }
  if (!std::all_of(choices.begin(), choices.end(), IsSimple)) return {};
  return {.is_text = true, .choices = choices.get<std::vector<std::string>>()};
}

}  // namespace tandem::engine
