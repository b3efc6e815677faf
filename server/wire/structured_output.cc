#include "server/wire/structured_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/constrain/grammar.h"
#include "engine/constrain/json_schema.h"
#include "engine/constrain/text_grammars.h"
#include "engine/io/json.h"

namespace tandem::server {
namespace {

using engine::GrammarSource;
using Json = nlohmann::ordered_json;

// A schema as an object, or as the text of one.
GrammarSource ReadSchema(const Json& value, const std::string& param,
                         const engine::JsonSpacing& spacing) {
  if (!value.is_string()) return engine::SchemaGrammar(value, param, spacing);
  const auto text = value.get<std::string>();
  Json schema;
  if (const auto error = ErrorOf([&] { schema = engine::ParseUntrustedJson(text, param); })) {
    throw Error(ErrorCode::kInvalidArgument, error->what())
        .WithParam(param)
        .WithReason("invalid_schema");
  }
  return engine::SchemaGrammar(schema, param, spacing);
}

std::string ReadText(const Json& value, const std::string& param) {
  if (!value.is_string()) throw WrongType(param, "a string", value);
  return value.get<std::string>();
}

GrammarSource ReadChoice(const Json& value, const std::string& param) {
  if (!value.is_array()) throw WrongType(param, "an array of strings", value);
  std::vector<std::string> choices;
  choices.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    choices.push_back(ReadText(value[i], param + "[" + std::to_string(i) + "]"));
  }
  return engine::ChoiceGrammar(choices, param);
}

GrammarSource ReadKind(const std::string& kind, const Json& value, const std::string& param,
                       const engine::JsonSpacing& spacing) {
  if (kind == "json") return ReadSchema(value, param, spacing);
  if (kind == "regex") return engine::RegexGrammar(ReadText(value, param), param);
  if (kind == "choice") return ReadChoice(value, param);
  if (kind == "grammar") return engine::LarkGrammar(ReadText(value, param), param);
  if (!value.is_boolean()) throw WrongType(param, "a boolean", value);
  return engine::JsonObjectGrammar(spacing);
}

bool IsSchemaName(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

std::optional<StructuredOutput> ReadResponseFormat(FieldReader& reader) {
  const Json* format = reader.Object("response_format");
  if (format == nullptr) return std::nullopt;
  FieldReader members(*format, "response_format");
  const std::string type = members.RequiredString("type");
  if (type == "text") return std::nullopt;
  if (type == "json_object") {
    return StructuredOutput{engine::JsonObjectGrammar(), "response_format"};
  }
  if (type != "json_schema") {
    throw BadValue("response_format.type",
                   "response_format.type must be text, json_object or json_schema, got " +
                       ShortForm(Json(type)));
  }
  const Json* outer = members.Object("json_schema");
  const std::string path = "response_format.json_schema";
  if (outer == nullptr) throw MissingField(path);
  FieldReader inner(*outer, path);
  const std::string name = inner.RequiredString("name");
  if (!IsSchemaName(name)) {
    throw BadValue(path + ".name",
                   path + ".name must be 1 to 64 of [A-Za-z0-9_-], got " + ShortForm(Json(name)));
  }
  inner.String("description");
  inner.Bool("strict");
  const Json* schema = inner.Any("schema");
  if (schema == nullptr) throw MissingField(path + ".schema");
  return StructuredOutput{engine::SchemaGrammar(*schema, path + ".schema"), path + ".schema"};
}

Error TwoKinds(const std::string& first, const std::string& second) {
  return BadValue(second, "structured_outputs must have only one of " + first + " and " + second);
}

Error UnknownKind(const std::string& param) {
  return UnsupportedField(
      param, param + " is not supported: use json, regex, choice, grammar or json_object");
}

std::optional<StructuredOutput> ReadStructuredOutputs(FieldReader& reader) {
  const Json* given = reader.Object("structured_outputs");
  if (given == nullptr) return std::nullopt;
  FieldReader members(*given, "structured_outputs");
  const std::string path = "structured_outputs";
  engine::JsonSpacing spacing;
  spacing.is_compact = members.Bool("disable_any_whitespace").value_or(false);
  if (const auto pattern = members.String("whitespace_pattern")) {
    if (spacing.is_compact) {
      throw BadValue(path + ".whitespace_pattern",
                     path + " must have only one of disable_any_whitespace and whitespace_pattern");
    }
    spacing.pattern = engine::CheckedSpacing(*pattern, path + ".whitespace_pattern");
  }
  std::optional<StructuredOutput> out;
  for (const char* kind : {"json", "regex", "choice", "grammar", "json_object"}) {
    const Json* value = members.Any(kind);
    if (value == nullptr || (std::string_view(kind) == "json_object" && *value == Json(false))) {
      continue;
    }
    const std::string param = path + "." + kind;
    if (out) throw TwoKinds(out->param, param);
    out = StructuredOutput{ReadKind(kind, *value, param, spacing), param};
  }
  const std::vector<std::string> unknown = members.unknown();
  if (!unknown.empty()) throw UnknownKind(path + "." + unknown.front());
  return out;
}

}  // namespace

std::optional<StructuredOutput> ReadStructuredOutput(FieldReader& reader) {
  std::optional<StructuredOutput> out;
  const auto take = [&](std::optional<StructuredOutput> one) {
    if (!one) return;
    if (out) {
      throw BadValue(one->param, "only one of " + out->param + " and " + one->param +
                                     " can constrain the answer: leave one out");
    }
    out = std::move(one);
  };
  take(ReadResponseFormat(reader));
  take(ReadStructuredOutputs(reader));
  for (const auto& [name, kind] :
       {std::pair("guided_json", "json"), std::pair("guided_regex", "regex"),
        std::pair("guided_choice", "choice"), std::pair("guided_grammar", "grammar"),
        std::pair("json_schema", "json")}) {
    // Empty values are what clients send to ask for nothing.
    const Json* value = reader.Any(name);
    if (value == nullptr || *value == Json("") || *value == Json::array()) continue;
    take(StructuredOutput{ReadKind(kind, *value, name, {}), name});
  }
  if (out) {
    WithContext(
        [&](const Error& error) { return Error(error.code(), error.what()).WithParam(out->param); },
        [] { engine::RequireLlguidance(); });
  }
  return out;
}

}  // namespace tandem::server
