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

// Parses the body of a JSON route in time linear in its bytes. Throws kInvalidArgument (reason
// invalid_json) unless it is exactly one JSON object in valid UTF-8. Limits: 64 levels, 1,048,576
// values, 16,384 names in one object, and no repeated name within an object.
nlohmann::ordered_json ParseJsonObject(std::string_view text);

// A bad value for a message, shortened to about 60 bytes.
std::string ShortForm(const nlohmann::ordered_json& value);

Error MissingField(const std::string& param);
Error WrongType(const std::string& param, std::string_view expected,
                const nlohmann::ordered_json& got);
Error BadValue(const std::string& param, const std::string& message);
Error UnsupportedField(const std::string& param, const std::string& message);

// Reads the fields of one JSON object and records the requested names, so that unknown() can list
// the others. JSON null means "not given". Faults throw kInvalidArgument with the field as `param`
// and reason invalid_type or invalid_value. The object must outlive the reader.
class FieldReader {
 public:
  // Messages prefix field names with `path`: "stream_options" gives "stream_options.include".
  explicit FieldReader(const nlohmann::ordered_json& object, std::string path = {});

  // Accepts 5.0 as an integer, but not 5.5 or "5".
  std::optional<int64_t> Int(std::string_view name, int64_t min, int64_t max);
  std::optional<double> Number(std::string_view name, double min, double max);
  std::optional<bool> Bool(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  std::string RequiredString(std::string_view name);
  // A value of any type; null if absent or JSON null.
  const nlohmann::ordered_json* Any(std::string_view name);
  const nlohmann::ordered_json* Object(std::string_view name);
  const nlohmann::ordered_json* Array(std::string_view name);

  // Marks known fields that have no effect.
  void Accept(std::initializer_list<std::string_view> names);

  // Given fields that no call has requested.
  std::vector<std::string> unknown() const;

 private:
  std::string ParamName(std::string_view name) const;

  const nlohmann::ordered_json& object_;
  const std::string path_;
  std::set<std::string, std::less<>> asked_;
};

// Throws BadValue for the reader's first unknown field, because a typo in an administrator's
// request must not be ignored. `known` lists the known fields in the message: "id, wait and force".
void RefuseUnknownFields(const FieldReader& reader, const std::string& known);

// The value of `x-ignored-params`: names that are safe in a header, at most 512 bytes in total.
std::string IgnoredParamsHeader(const std::vector<std::string>& names);

}  // namespace tandem::server
