#include "engine/chat/answers/argument_grammar.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "engine/chat/answers/parameter_form.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// Keywords beside `properties` that say nothing about a declared parameter.
constexpr std::array<std::string_view, 12> kSimple = {
    "type",  "properties",  "required", "additionalProperties",
    "$defs", "definitions", "$schema",  "description",
    "title", "default",     "examples", "strict"};
constexpr std::string_view kKeyBytes =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
constexpr std::string_view kAnyName = "[A-Za-z_][A-Za-z0-9_]{0,63}";

Error Unspellable(const std::string& path, const std::string& why) {
  return Error(ErrorCode::kInvalidArgument, path + " " + why)
      .WithParam(path)
      .WithReason("unsupported_schema");
}

// Arguments are an object, whatever else the schema says.
Json ObjectSchema(const Json* schema, const std::string& path) {
  Json out = schema != nullptr && !schema->is_boolean() ? *schema : Json::object();
  if (!out.contains("type") || out["type"].is_array()) out["type"] = "object";
  if (!IsString(out["type"], "object")) {
    throw Error(ErrorCode::kInvalidArgument, path + ".type must be object")
        .WithParam(path + ".type")
        .WithReason("invalid_schema");
  }
  return out;
}

// Whether every reference points to a definition, which parameters take with them.
bool HasLocalReferences(const Json& schema) {
  if (!schema.is_structured()) return true;
  if (schema.is_object() && schema.contains("$ref") && schema["$ref"].is_string()) {
    const auto& target = schema["$ref"].get_ref<const std::string&>();
    if (!target.starts_with("#/$defs/") && !target.starts_with("#/definitions/")) return false;
  }
  return std::all_of(schema.begin(), schema.end(), HasLocalReferences);
}

std::string AnyOf(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "(" : "|") + RegexOf(text);
  return out + ")";
}

}  // namespace

void ArgumentGrammar::Append(const CallableTool& tool, LarkSequence& out) {
  const ToolFormat& format = *options_.format;
  switch (format.style) {
    case CallStyle::kJson:
      out.Regex("\\{\"name\": ?").Text('"' + tool.name + '"').Regex(", ?");
      out.Text('"' + std::string(format.arguments_key) + '"').Regex(": ?");
      out.Part(ObjectRule(tool)).Text("}");
      return;
    case CallStyle::kNameThenJson: {
      out.Text(tool.name);
      const MarkToken mark = options_.find_mark(format.name_end);
      mark.id ? out.Token(*mark.id) : out.Text(format.name_end);
      out.Part(ObjectRule(tool));
      return;
    }
    case CallStyle::kXmlParameters:
      return AppendXml(tool, out);
    case CallStyle::kPythonic:
      out.Text(tool.name + "(").Part(Members(tool)).Text(")");
      return;
    case CallStyle::kKeyedValues:
      out.Text("call:" + tool.name + "{").Part(Members(tool)).Text("}");
      return;
    case CallStyle::kHarmony:
      out.Part(ObjectRule(tool));
  }
}

std::string ArgumentGrammar::JsonRule(const Json& schema, const std::string& path) {
  const std::string json = options_.schema(schema, path);
  lark_.Charge(json.size());
  return lark_.Rule("%json " + json);
}

std::string ArgumentGrammar::ObjectRule(const CallableTool& tool) {
  return JsonRule(ObjectSchema(tool.parameters, tool.path), tool.path);
}

std::vector<ArgumentGrammar::Parameter> ArgumentGrammar::Parameters(
    const CallableTool& tool) const {
  std::vector<Parameter> out;
  if (tool.parameters == nullptr || !tool.parameters->is_object()) return out;
  const Json& schema = *tool.parameters;
  for (const auto& [key, value] : schema.items()) {
    if (std::find(kSimple.begin(), kSimple.end(), key) == kSimple.end()) {
      throw Unspellable(tool.path + "." + key,
                        "cannot be spelled in the format of this model's calls: use properties and "
                        "required only");
    }
  }
  options_.schema(ObjectSchema(tool.parameters, tool.path), tool.path);  // checks it as a whole
  if (!HasLocalReferences(schema)) {
    throw Unspellable(tool.path,
                      "must refer to $defs or definitions only, in the format of this model");
  }
  static const Json none = Json::array();
  const Json& required = schema.contains("required") ? schema["required"] : none;
  const auto is_required = [&](const std::string& name) {
    return std::any_of(required.begin(), required.end(),
                       [&](const Json& one) { return IsString(one, name); });
  };
  const bool has_properties = schema.contains("properties") && schema["properties"].is_object();
  if (has_properties) {
    for (const auto& [name, property] : schema["properties"].items()) {
      const std::string path = tool.path + ".properties." + name;
      if (name.empty() || name.find_first_not_of(kKeyBytes) != std::string::npos) {
        if (!is_required(name)) continue;
        throw Unspellable(path,
                          "cannot be spelled in the format of this model's calls: use "
                          "[A-Za-z0-9_.-]");
      }
      out.push_back({name, path, is_required(name), &property});
    }
  }
  for (const Json& name : required) {
    const bool is_declared = name.is_string() && has_properties &&
                             schema["properties"].contains(name.get<std::string>());
    if (!is_declared) throw Unspellable(tool.path + ".required", "must name properties");
  }
  return out;
}

std::string ArgumentGrammar::ParameterRule(const CallableTool& tool, const Parameter& parameter) {
  Json schema = *parameter.schema;
  if (schema.is_boolean()) schema = Json::object();
  for (const char* definitions : {"$defs", "definitions"}) {
    if (tool.parameters->contains(definitions)) {
      schema[definitions] = (*tool.parameters)[definitions];
    }
  }
  return JsonRule(schema, parameter.path);
}

// ---- <function=f><parameter=k>v</parameter></function>

void ArgumentGrammar::AppendXml(const CallableTool& tool, LarkSequence& out) {
  out.Text("<function=" + tool.name + ">").Regex("\\n?");
  const std::vector<Parameter> parameters = Parameters(tool);
  const bool is_any = parameters.empty() && (tool.parameters == nullptr ||
                                             !tool.parameters->contains("additionalProperties"));
  std::string members;
  for (const Parameter& parameter : parameters) {
    members += (members.empty() ? "" : " ") + XmlParameter(tool, parameter);
    if (!parameter.is_required) members += "?";
  }
  if (is_any) {
    LarkSequence any;
    any.Regex("<parameter=" + std::string(kAnyName) + ">").Part(XmlText()).Regex("\\n?");
    members = "(" + any.str() + ")*";
  }
  out.Part(members).Regex("<\\/function>");
}

std::string ArgumentGrammar::XmlParameter(const CallableTool& tool, const Parameter& parameter) {
  const ParameterForm form = FormOf(*parameter.schema);
  LarkSequence out;
  out.Text("<parameter=" + parameter.name + ">");
  if (form.is_text && form.choices.empty()) {
    out.Part(XmlText()).Regex("\\n?");
  } else {
    out.Regex("\\n?");
    form.is_text ? out.Regex(AnyOf(form.choices)) : out.Part(ParameterRule(tool, parameter));
    out.Regex("\\n?<\\/parameter>\\n?");
  }
  return lark_.Rule(out.str());
}

// A text up to the first end of a parameter, which counts.
std::string ArgumentGrammar::XmlText() {
  std::string body = "/" + std::string(kAnyText) + "<\\/parameter>/";
  for (const std::string& mark : excluded_) {
    body += " & ~/" + std::string(kAnyText) + RegexOf(mark) + std::string(kAnyText) + "/";
  }
  return lark_.Lazy(lark_.Terminal(body));
}

// ---- f(k="v", n=1), call:f{k:<quote>v<quote>,n:1}

std::string ArgumentGrammar::Members(const CallableTool& tool) {
  const std::vector<Parameter> parameters = Parameters(tool);
  // Rules from the last parameter to the first: what may follow with and without a comma.
  std::string first, rest;
  if (parameters.empty() &&
      (tool.parameters == nullptr || !tool.parameters->contains("additionalProperties"))) {
    const char* between = options_.format->style == CallStyle::kPythonic ? "=" : ":";
    const std::string value = JsonRule(Json::object(), tool.path);
    LarkSequence one, other;
    one.Regex(kAnyName).Text(between).Part(value);
    other.Regex(", ?").Regex(kAnyName).Text(between).Part(value);
    return lark_.Rule("(" + one.str() + " (" + other.str() + ")*)?");
  }
  for (size_t i = parameters.size(); i-- > 0;) {
    const Parameter& parameter = parameters[i];
    const std::string as_first = Member(tool, parameter, false) + " " + rest;
    const std::string as_next = Member(tool, parameter, true) + " " + rest;
    const bool may_skip = !parameter.is_required;
    const std::string skipped_first = first.empty() ? "\"\"" : first;
    const std::string skipped_rest = rest.empty() ? "\"\"" : rest;
    first = lark_.Rule(may_skip ? as_first + " | " + skipped_first : as_first);
    rest = lark_.Rule(may_skip ? as_next + " | " + skipped_rest : as_next);
  }
  return first;
}

std::string ArgumentGrammar::Member(const CallableTool& tool, const Parameter& parameter,
                                    bool has_comma) {
  const bool is_python = options_.format->style == CallStyle::kPythonic;
  LarkSequence out;
  if (has_comma) out.Regex(", ?");
  out.Text(parameter.name + (is_python ? "=" : ":"));
  const ParameterForm form = FormOf(*parameter.schema);
  const Json& schema = *parameter.schema;
  if (!is_python && form.is_text) {
    out.Part(QuotedText(form.choices));
  } else if (is_python && schema == Json{{"type", "boolean"}}) {
    out.Regex("(True|False)");
  } else {
    out.Part(ParameterRule(tool, parameter));
  }
  return lark_.Rule(out.str());
}

std::string ArgumentGrammar::QuotedText(const std::vector<std::string>& choices) {
  const std::string quote(options_.format->quote);
  const MarkToken mark = options_.find_mark(quote);
  LarkSequence out;
  if (!mark.id && choices.empty()) {
    std::string body = "/" + RegexOf(quote) + std::string(kAnyText) + RegexOf(quote) + "/";
    for (const std::string& one : excluded_) {
      body += " & ~/" + std::string(kAnyText) + RegexOf(one) + std::string(kAnyText) + "/";
    }
    return lark_.Lazy(lark_.Terminal(body));
  }
  std::vector<std::string> excluded = excluded_;
  excluded.push_back(quote);
  mark.id ? out.Token(*mark.id) : out.Text(quote);
  choices.empty() ? out.Part(lark_.Terminal(TextWithout(excluded)) + "?")
                  : out.Regex(AnyOf(choices));
  mark.id ? out.Token(*mark.id) : out.Text(quote);
  return lark_.Rule(out.str());
}

}  // namespace tandem::engine
