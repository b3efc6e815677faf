#include "engine/constrain/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxSchemaBytes = size_t{1} << 20;
constexpr int kMaxDepth = 64;
constexpr int64_t kMaxCount = 10'000;
// llguidance compiles this many within a second. Wider alternatives exceed a row of its parser.
constexpr int64_t kMaxSchemas = 4'000;
constexpr size_t kMaxWidth = 1'500;
// llguidance reads numbers as doubles.
constexpr int64_t kMaxExactInteger = int64_t{1} << 53;

// Keywords that restrict a value and that the grammar does not hold.
constexpr std::array<std::string_view, 19> kUnserved = {"not",
                                                        "if",
                                                        "then",
                                                        "else",
                                                        "contains",
                                                        "minContains",
                                                        "maxContains",
                                                        "propertyNames",
                                                        "dependencies",
                                                        "dependentRequired",
                                                        "dependentSchemas",
                                                        "unevaluatedItems",
                                                        "unevaluatedProperties",
                                                        "$dynamicRef",
                                                        "$dynamicAnchor",
                                                        "$recursiveRef",
                                                        "$recursiveAnchor",
                                                        "extends",
                                                        "disallow"};
constexpr std::array<std::string_view, 6> kCounts = {"minLength", "maxLength",     "minItems",
                                                     "maxItems",  "minProperties", "maxProperties"};
constexpr std::array<std::string_view, 5> kBounds = {"minimum", "maximum", "exclusiveMinimum",
                                                     "exclusiveMaximum", "multipleOf"};
constexpr std::array<std::string_view, 10> kFormats = {
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"};
// Days that exist, in leap years too. Seconds stop at 59: few readers accept a leap second.
constexpr const char* kDay =
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|"
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
constexpr const char* kTime = "[0-9]{2}:[0-9]{2}:[0-5]";
constexpr std::array<std::string_view, 4> kSchemaMaps = {"properties", "patternProperties", "$defs",
                                                         "definitions"};
constexpr std::array<std::string_view, 4> kSchemaLists = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr std::array<std::string_view, 2> kSchemas = {"additionalProperties", "additionalItems"};

template <size_t n>
bool IsIn(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Error Unsupported(const std::string& param, const std::string& message) {
  return Error(ErrorCode::kInvalidArgument, param + " " + message)
      .WithParam(param)
      .WithReason("unsupported_schema");
}

Error Invalid(const std::string& param, const std::string& message) {
  return Error(ErrorCode::kInvalidArgument, param + " " + message)
      .WithParam(param)
      .WithReason("invalid_schema");
}

// The path of a member: "schema.properties" and "age" make "schema.properties.age".
std::string Under(const std::string& path, std::string_view name) {
  std::string out = path;
  out += '.';
  out += name;
  return out;
}

// Checks a schema and rewrites what llguidance reads differently.
class Rewriter {
 public:
  void Schema(Json& schema, const std::string& path, int depth) {
    if (schema.is_boolean()) return;
    if (!schema.is_object()) throw Invalid(path, "must be a schema: an object or a boolean");
    if (depth > kMaxDepth) {
      throw Unsupported(path, "is nested deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    if (++n_schemas_ > kMaxSchemas) {
      throw Unsupported(path, "is one of more than " + std::to_string(kMaxSchemas) +
                                  " schemas in one answer's schema: split the request");
    }
    // Options of llguidance, which a client must not set.
    schema.erase("x-guidance");
    for (auto& [name, value] : schema.items()) Keyword(name, value, Under(path, name), depth);
    if (depth > 0 && (schema.contains("$id") || schema.contains("id"))) {
      const char* name = schema.contains("$id") ? "$id" : "id";
      if (schema[name].is_string()) {
        throw Unsupported(path + "." + name,
                          "is not supported below the top: references must not change their base");
      }
    }
    DropNeutral(schema);
    BoundIntegers(schema);
    MoveExclusiveBounds(schema);
    MakeNullable(schema, path);
  }

 private:
  void Keyword(const std::string& name, Json& value, const std::string& path, int depth) {
    if (IsIn(kUnserved, name)) {
      throw Unsupported(path, "is not supported: leave it out and check the answer");
    }
    if (name == "uniqueItems" && value != Json(false)) {
      throw Unsupported(path, "is not supported: leave it out and check the answer");
    }
    if (IsIn(kSchemaMaps, name)) {
      if (!value.is_object()) throw Invalid(path, "must be an object of schemas");
      CheckWidth(value, path);
      for (auto& [key, schema] : value.items()) Schema(schema, Under(path, key), depth + 1);
    } else if (IsIn(kSchemaLists, name) || (name == "items" && value.is_array())) {
      if (!value.is_array() || value.empty()) throw Invalid(path, "must be a list of schemas");
      CheckWidth(value, path);
      for (size_t i = 0; i < value.size(); ++i) {
        Schema(value[i], path + "[" + std::to_string(i) + "]", depth + 1);
      }
    } else if (IsIn(kSchemas, name) || name == "items") {
      Schema(value, path, depth + 1);
    } else if (name == "$ref") {
      Reference(value, path);
    } else if (name == "const" || name == "enum") {
      if (name == "enum" && (!value.is_array() || value.empty())) {
        throw Invalid(path, "must be a list of values");
      }
      Value(value, path);
    } else if (IsIn(kCounts, name)) {
      Count(value, path);
    } else if (IsIn(kBounds, name)) {
      Value(value, path);
    }
  }

  static void CheckWidth(const Json& value, const std::string& path) {
    if (value.size() <= kMaxWidth) return;
    throw Unsupported(path, "must have at most " + std::to_string(kMaxWidth) + " schemas");
  }

  static void Reference(const Json& value, const std::string& path) {
    if (!value.is_string()) throw Invalid(path, "must be a string");
    const auto target = value.get<std::string>();
    if (target != "#" && !target.starts_with("#/")) {
      throw Unsupported(path, "must point into the schema itself, as in \"#/$defs/name\"");
    }
    if (target.find_first_of("~%") != std::string::npos) {
      throw Unsupported(path, "must not hold escapes: rename the definition");
    }
  }

  static void Count(const Json& value, const std::string& path) {
    const bool is_whole = value.is_number() && value.get<double>() >= 0 &&
                          value.get<double>() == std::floor(value.get<double>());
    if (!is_whole) throw Invalid(path, "must be a whole number of at least 0");
    if (value.get<double>() > static_cast<double>(kMaxCount)) {
      throw Unsupported(path, "must be at most " + std::to_string(kMaxCount));
    }
  }

  // Numbers that a double does not hold would become others.
  static void Value(const Json& value, const std::string& path) {
    if (value.is_structured()) {
      for (const auto& [key, member] : value.items()) Value(member, Under(path, key));
      return;
    }
    if (!value.is_number()) return;
    if (!std::isfinite(value.get<double>()) ||
        (value.is_number_integer() &&
         std::abs(value.get<double>()) >= static_cast<double>(kMaxExactInteger))) {
      throw Unsupported(path, "must lie between -2^53 and 2^53");
    }
  }

  static void DropNeutral(Json& schema) {
    schema.erase("uniqueItems");
    if (const auto format = schema.find("format"); format != schema.end()) {
      const bool is_known = format->is_string() && IsIn(kFormats, format->get<std::string>());
      if (!is_known) {
        schema.erase("format");
      } else if (!schema.contains("pattern")) {
        NarrowFormat(format->get<std::string>(), schema);
      }
    }
    // As counts, llguidance reads integers only.
    for (const std::string_view name : kCounts) {
      if (const auto count = schema.find(std::string(name)); count != schema.end()) {
        *count = static_cast<int64_t>(count->get<double>());
      }
    }
  }

  // The calendar formats of llguidance hold more than their validators accept.
  static void NarrowFormat(const std::string& format, Json& schema) {
    if (format == "date") schema["pattern"] = std::string("^") + kDay + "$";
    if (format == "time") schema["pattern"] = std::string("^") + kTime;
    if (format == "date-time") schema["pattern"] = std::string("^") + kDay + "." + kTime;
  }

  static bool Lists(const Json& type, const char* name) {
    return type == Json(name) ||
           (type.is_array() && std::find(type.begin(), type.end(), name) != type.end());
  }

  // An aimless model would add digits to an unbounded integer until its token limit. llguidance/
  // bounds other numbers.
  static void BoundIntegers(Json& schema) {
    const auto type = schema.find("type");
    if (type == schema.end() || !Lists(*type, "integer") || Lists(*type, "number")) return;
    for (const char* name : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
      const auto bound = schema.find(name);
      if (bound == schema.end()) continue;
      const bool is_small = bound->is_number() &&
                            std::abs(bound->get<double>()) < static_cast<double>(kMaxExactInteger);
      if (!is_small) return;
    }
    if (!schema.contains("minimum") && !schema.contains("exclusiveMinimum")) {
      schema["minimum"] = 1 - kMaxExactInteger;
    }
    if (!schema.contains("maximum") && !schema.contains("exclusiveMaximum")) {
      schema["maximum"] = kMaxExactInteger - 1;
    }
  }

  // llguidance 1.9.1 reads an excluded whole number, such as {"exclusiveMinimum": 0,
  // "maximum": 0.5}, as allowed if the other bound lies within one of it. So the bound moves by a
  // little, always: another schema of an allOf may have the other bound.
  static void MoveExclusiveBounds(Json& schema) {
    const auto type = schema.find("type");
    if (type != schema.end() && Lists(*type, "integer") && !Lists(*type, "number")) return;
    Move(schema, "exclusiveMinimum", "minimum", 1);
    Move(schema, "exclusiveMaximum", "maximum", -1);
  }

  static void Move(Json& schema, const char* exclusive, const char* inclusive, double sign) {
    const auto found = schema.find(exclusive);
    if (found == schema.end() || !found->is_number()) return;
    const double bound = found->get<double>();
    if (bound != std::floor(bound) || sign * bound < 0) return;
    const auto other = schema.find(inclusive);
    const bool is_narrower =
        other != schema.end() && other->is_number() && sign * other->get<double>() > sign * bound;
    schema.erase(exclusive);
    if (is_narrower) return;
    schema[inclusive] = bound + sign * std::max(1e-9, std::abs(bound) * 1e-15);
  }

  // OpenAPI's keyword: null is allowed besides the type.
  static void MakeNullable(Json& schema, const std::string& path) {
    const auto nullable = schema.find("nullable");
    if (nullable == schema.end()) return;
    if (!nullable->is_boolean()) throw Invalid(path + ".nullable", "must be a boolean");
    const bool is_nullable = nullable->get<bool>();
    schema.erase("nullable");
    const auto type = schema.find("type");
    if (!is_nullable || type == schema.end()) return;
    if (type->is_string()) *type = Json::array({*type});
    if (type->is_array() && std::find(type->begin(), type->end(), "null") == type->end()) {
      type->push_back("null");
    }
  }

  int64_t n_schemas_ = 0;
};

GrammarSource MakeSource(Json schema, const JsonSpacing& spacing) {
  Json options = {{"whitespace_flexible", false}, {"coerce_one_of", true}};
  if (spacing.pattern) {
    options["whitespace_pattern"] = *spacing.pattern;
  } else if (!spacing.is_compact) {
    options["key_separator"] = ":\\x20?";
    options["item_separator"] = ",\\x20?";
  }
  schema["x-guidance"] = std::move(options);
  return {GrammarSource::Kind::kJsonSchema, schema.dump()};
}

}  // namespace

GrammarSource SchemaGrammar(const Json& schema, const std::string& param,
                            const JsonSpacing& spacing) {
  Json copy = schema;
  Rewriter().Schema(copy, param, 0);
  if (copy.is_boolean()) {
    if (!copy.get<bool>()) throw Invalid(param, "allows no value");
    copy = Json::object();
  }
  GrammarSource source = MakeSource(std::move(copy), spacing);
  if (source.text.size() > kMaxSchemaBytes) {
    throw Unsupported(param, "must have at most " + std::to_string(kMaxSchemaBytes) + " bytes");
  }
  return source;
}

GrammarSource JsonObjectGrammar(const JsonSpacing& spacing) {
  return MakeSource({{"type", "object"}}, spacing);
}

std::string CheckedSpacing(const std::string& pattern, const std::string& param) {
  const Error wrong = Error(ErrorCode::kInvalidArgument,
                            param +
                                " must consist of space, \\t, \\n, \\r, \\s, classes of them, "
                                "and the quantifiers ? * + {m,n}")
                          .WithParam(param)
                          .WithReason("invalid_value");
  if (pattern.empty() || pattern.size() > 64) throw wrong;
  std::string out;
  bool in_class = false;
  bool in_count = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (in_count) {
      if ((c < '0' || c > '9') && c != ',' && c != '}') throw wrong;
      in_count = c != '}';
      out += c;
    } else if (c == '\\') {
      if (++i == pattern.size()) throw wrong;
      if (pattern[i] == 's') {
        out += in_class ? "\\x20\\t\\n\\r" : "[\\x20\\t\\n\\r]";
      } else if (pattern[i] == 't' || pattern[i] == 'n' || pattern[i] == 'r') {
        out += std::string("\\") + pattern[i];
      } else {
        throw wrong;
      }
    } else if (c == ' ') {
      out += "\\x20";
    } else if (c == '\t' || c == '\n' || c == '\r') {
      out += c == '\t' ? "\\t" : c == '\n' ? "\\n" : "\\r";
    } else if (c == '[' && !in_class) {
      in_class = true;
      out += c;
    } else if (c == ']' && in_class) {
      in_class = false;
      out += c;
    } else if (!in_class && (c == '?' || c == '*' || c == '+' || c == '{')) {
      in_count = c == '{';
      out += c;
    } else {
      throw wrong;
    }
  }
  if (in_class || in_count) throw wrong;
  return out;
}

}  // namespace tandem::engine
