#include "server/wire/field_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/base/attempt.h"
#include "engine/io/json.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

// Eight prompts of 128k token ids fit, and known clients send fewer than a thousand names.
constexpr engine::JsonLimits kBodyLimits = {
    .max_depth = 64, .max_names = 16 << 10, .max_values = 1 << 20};

Error InvalidJson(const std::string& message) {
  return Error(ErrorCode::kInvalidArgument, message).WithReason("invalid_json");
}

std::string Plain(double value) {
  char text[32];
  snprintf(text, sizeof(text), "%g", value);
  return text;
}

std::string IntegerIn(int64_t min, int64_t max) {
  const bool has_min = min > std::numeric_limits<int64_t>::min();
  const bool has_max = max < std::numeric_limits<int64_t>::max();
  if (has_min && has_max) {
    return "an integer in [" + std::to_string(min) + ", " + std::to_string(max) + "]";
  }
  return has_min ? "an integer of at least " + std::to_string(min) : "an integer of 64 bits";
}

}  // namespace

Json ParseJsonObject(std::string_view text) {
  // The library treats a NUL as the end of its input and would ignore the rest.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw InvalidJson("the body is not valid JSON (at byte " + std::to_string(nul + 1) + ")");
  }
  const auto as_invalid_json = [](const Error& error) { return InvalidJson(error.what()); };
  Json value = WithContext(
      as_invalid_json, [&] { return engine::ParseUntrustedJson(text, "the body", kBodyLimits); });
  if (!value.is_object()) throw InvalidJson("the body must be a JSON object");
  return value;
}

std::string ShortForm(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  std::string text;
  if (value.is_string()) {
    const auto& string = value.get_ref<const std::string&>();
    size_t n = std::min<size_t>(string.size(), 60);
    // Cuts between characters.
    while (n < string.size() && n > 0 && (static_cast<unsigned char>(string[n]) & 0xc0) == 0x80)
      --n;
    text = Json(string.substr(0, n)).dump(-1, ' ', false, Json::error_handler_t::replace);
    if (string.size() > n) text += "…";
  } else {
    text = value.dump();
  }
  return text;
}

Error MissingField(const std::string& param) {
  return Error(ErrorCode::kInvalidArgument, param + " is required")
      .WithParam(param)
      .WithReason("missing_required_parameter");
}

Error WrongType(const std::string& param, std::string_view expected, const Json& got) {
  return Error(ErrorCode::kInvalidArgument,
               param + " must be " + std::string(expected) + ", got " + ShortForm(got))
      .WithParam(param)
      .WithReason("invalid_type");
}

Error BadValue(const std::string& param, const std::string& message) {
  return Error(ErrorCode::kInvalidArgument, message).WithParam(param).WithReason("invalid_value");
}

Error UnsupportedField(const std::string& param, const std::string& message) {
  return Error(ErrorCode::kUnsupported, message)
      .WithParam(param)
      .WithReason("unsupported_parameter");
}

FieldReader::FieldReader(const Json& object, std::string path)
    : object_(object), path_(std::move(path)) {}

std::string FieldReader::ParamName(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

const Json* FieldReader::Any(std::string_view name) {
  asked_.emplace(name);
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> FieldReader::Int(std::string_view name, int64_t min, int64_t max) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  const std::string wanted = IntegerIn(min, max);
  if (!value->is_number()) throw WrongType(ParamName(name), wanted, *value);
  int64_t out = 0;
  bool fits = true;
  if (value->is_number_unsigned()) {
    const auto raw = value->get<uint64_t>();
    fits = raw <= static_cast<uint64_t>(INT64_MAX);
    out = static_cast<int64_t>(raw);
  } else if (value->is_number_integer()) {
    out = value->get<int64_t>();
  } else {
    const double raw = value->get<double>();
    if (raw != std::floor(raw)) throw WrongType(ParamName(name), wanted, *value);
    // Beyond 2^53 a double does not identify one integer.
    fits = std::abs(raw) <= 9007199254740992.0;
    if (fits) out = static_cast<int64_t>(raw);
  }
  if (!fits || out < min || out > max) {
    throw BadValue(ParamName(name),
                   ParamName(name) + " must be " + wanted + ", got " + ShortForm(*value));
  }
  return out;
}

std::optional<double> FieldReader::Number(std::string_view name, double min, double max) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  const std::string wanted = "a number in [" + Plain(min) + ", " + Plain(max) + "]";
  if (!value->is_number()) throw WrongType(ParamName(name), wanted, *value);
  const auto out = value->get<double>();
  if (!(out >= min && out <= max)) {
    throw BadValue(ParamName(name),
                   ParamName(name) + " must be " + wanted + ", got " + ShortForm(*value));
  }
  return out;
}

std::optional<bool> FieldReader::Bool(std::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) throw WrongType(ParamName(name), "true or false", *value);
  return value->get<bool>();
}

std::optional<std::string> FieldReader::String(std::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw WrongType(ParamName(name), "a string", *value);
  return value->get<std::string>();
}

std::string FieldReader::RequiredString(std::string_view name) {
  std::optional<std::string> value = String(name);
  if (!value) throw MissingField(ParamName(name));
  return std::move(*value);
}

const Json* FieldReader::Object(std::string_view name) {
  const Json* value = Any(name);
  if (value != nullptr && !value->is_object()) {
    throw WrongType(ParamName(name), "an object", *value);
  }
  return value;
}

const Json* FieldReader::Array(std::string_view name) {
  const Json* value = Any(name);
  if (value != nullptr && !value->is_array()) throw WrongType(ParamName(name), "an array", *value);
  return value;
}

void FieldReader::Accept(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) asked_.emplace(name);
}

std::vector<std::string> FieldReader::unknown() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : object_.items()) {
    if (!asked_.contains(name)) out.push_back(name);
  }
  return out;
}

void RefuseUnknownFields(const FieldReader& reader, const std::string& known) {
  const std::vector<std::string> unknown = reader.unknown();
  if (unknown.empty()) return;
  throw BadValue(unknown.front(), "unknown field " +
                                      ShortForm(nlohmann::ordered_json(unknown.front())) +
                                      "; known are " + known);
}

std::string IgnoredParamsHeader(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    std::string safe = name.substr(0, 64);
    for (char& c : safe) {
      const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                            (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '.';
      if (!is_plain) c = '?';
    }
    if (out.size() + safe.size() + 2 > 512) break;
    if (!out.empty()) out += ", ";
    out += safe;
  }
  return out;
}

}  // namespace tandem::server
