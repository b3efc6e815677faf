#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"

namespace tandem::server {

// Parses the body of a JSON route, in time linear in its bytes. Throws kInvalidArgument (reason
// invalid_json) unless it is one JSON object in valid UTF-8 with nothing behind it. The object has
// at most 64 levels, 1,048,576 values, 16,384 names in one object, and no name twice in one object.
nlohmann::ordered_json ParseJsonObject(std::string_view text);

// A shortened form of a bad value, for messages: at most about 60 bytes.
std::string ShortForm(const nlohmann::ordered_json& value);

Error MissingField(const std::string& param);
Error WrongType(const std::string& param, std::string_view expected,
                const nlohmann::ordered_json& got);
Error BadValue(const std::string& param, const std::string& message);
Error UnsupportedField(const std::string& param, const std::string& message);

// Reads the fields of one JSON object and remembers which it was asked for, so that what nobody
// asked for can be named. JSON null means "not given" everywhere. Faults throw kInvalidArgument
// with the field as `param` and invalid_type or invalid_value as reason. The object must outlive
// the reader.
class FieldReader {
 public:
  // `path` goes before field names in messages: "stream_options" gives "stream_options.include".
  explicit FieldReader(const nlohmann::ordered_json& object, std::string path = {});

  // 5.0 is an integer, 5.5 and "5" are not.
  std::optional<int64_t> Int(std::string_view name, int64_t min, int64_t max);
  std::optional<double> Number(std::string_view name, double min, double max);
  std::optional<bool> Bool(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  std::string RequiredString(std::string_view name);
  // Any value; null when absent or JSON null.
  const nlohmann::ordered_json* Any(std::string_view name);
  const nlohmann::ordered_json* Object(std::string_view name);
  const nlohmann::ordered_json* Array(std::string_view name);

  // Fields that are known and have no effect.
  void Accept(std::initializer_list<std::string_view> names);

  // Given fields that were never asked for.
  std::vector<std::string> unknown() const;

 private:
  std::string ParamName(std::string_view name) const;

  const nlohmann::ordered_json& object_;
  const std::string path_;
  std::set<std::string, std::less<>> asked_;
};

// A typo in an administrator's request must not be passed over: throws BadValue of the first of the
// reader's unknown fields. `known` is for the message: "id, wait and force".
void RefuseUnknownFields(const FieldReader& reader, const std::string& known);

// The value of `x-ignored-params`: names that are safe in a header, at most 512 bytes.
std::string IgnoredParamsHeader(const std::vector<std::string>& names);

}  // namespace tandem::server
