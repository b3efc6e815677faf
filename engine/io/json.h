#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::engine {

// Bounds of one JSON text. Parsing stops at the first bound that the text exceeds.
struct JsonLimits {
  int max_depth = 64;                                        // nesting levels
  int64_t max_names = std::numeric_limits<int64_t>::max();   // names in one object
  int64_t max_values = std::numeric_limits<int64_t>::max();  // values in the whole text
  // Keeps the digits of integers outside 64 bits (see WideIntegerDigits) in place of the nearest
  // double. Only templates read these values.
  bool keep_wide_integers = false;
};

// The digits of an integer outside 64 bits that `keep_wide_integers` kept; nullopt for other
// values.
std::optional<std::string> WideIntegerDigits(const nlohmann::ordered_json& value);

// Parses untrusted JSON. Rejects invalid UTF-8, control characters, NaN, numbers beyond a double,
// trailing text, duplicate names, and nesting deeper than `max_depth` (before building anything).
// Time and memory are linear in the text, apart from sorting the names of one object. Throws
// kDataLoss: "<source>: <what> at byte N", N counting from 1.
nlohmann::ordered_json ParseUntrustedJson(std::string_view text, const std::string& source,
                                          int max_depth = 64);
// Checks more bounds. The message names the bound that the text exceeds.
nlohmann::ordered_json ParseUntrustedJson(std::string_view text, const std::string& source,
                                          const JsonLimits& limits);

// Whether the value is this string. nlohmann's own comparison with a literal builds a value inside
// a noexcept function, so a failed allocation would end the process.
bool IsString(const nlohmann::ordered_json& value, std::string_view text);

// Field access for config files. Each throws kDataLoss naming source and field when the value has
// the wrong type or lies outside [min, max]. `…Or` returns the fallback (unchecked) when the field
// is absent or null; JsonInt requires the field. An exact integer written as 4096.0 counts as an
// integer.
int64_t JsonInt(const nlohmann::ordered_json& object, const char* field, int64_t min, int64_t max,
                const std::string& source);
int64_t JsonIntOr(const nlohmann::ordered_json& object, const char* field, int64_t fallback,
                  int64_t min, int64_t max, const std::string& source);
double JsonNumberOr(const nlohmann::ordered_json& object, const char* field, double fallback,
                    double min, double max, const std::string& source);
bool JsonBoolOr(const nlohmann::ordered_json& object, const char* field, bool fallback,
                const std::string& source);
std::string JsonStringOr(const nlohmann::ordered_json& object, const char* field,
                         const std::string& fallback, const std::string& source);

}  // namespace tandem::engine
