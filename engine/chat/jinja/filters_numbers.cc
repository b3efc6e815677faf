// Filters of numbers.

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "engine/chat/jinja/access.h"
#include "engine/chat/jinja/filter_tables.h"

namespace tandem::engine {
namespace {

std::string Stripped(Runtime& rt, const Value& value) {
  std::string text(Strip(rt, value.text(), nullptr, Side::kBoth)->bytes());
  std::erase(text, '_');
  return text;
}

std::optional<double> ParseFloat(Runtime& rt, const Value& value) {
  if (value.is_number()) return value.number();
  if (!IsText(value)) return std::nullopt;
  std::string text = Stripped(rt, value);
  // from_chars accepts "inf" and "nan" as Python does, but no plus sign.
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') ++begin;
  double number = 0;
  const auto result = std::from_chars(begin, end, number);
  if (result.ptr != end || begin == end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) return std::strtod(begin, nullptr);
  if (result.ec != std::errc()) return std::nullopt;
  return number;
}

std::optional<int64_t> FloatToInt(Runtime& rt, double number) {
  if (std::isnan(number) || std::isinf(number)) return std::nullopt;
  if (!(std::fabs(number) < 9.2e18)) rt.Fail("the integer does not fit into 64 bits");
  return static_cast<int64_t>(number);
}

std::optional<int64_t> ParseInt(Runtime& rt, const Value& value, int64_t base) {
  std::string text = Stripped(rt, value);
  const bool negative = !text.empty() && text[0] == '-';
  size_t at = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  const std::string_view prefixes[] = {"0x", "0o", "0b"};
  const int64_t bases[] = {16, 8, 2};
  for (size_t i = 0; i < 3; ++i) {
    if (text.size() < at + 2 || text[at] != '0' || (text[at + 1] | 0x20) != prefixes[i][1])
      continue;
    if (base == bases[i] || base == 0) {
      base = bases[i];
      at += 2;
      break;
    }
  }
  if (base == 0) base = 10;
  if (at >= text.size() || text[at] == '-') return std::nullopt;
  const std::string digits = (negative ? "-" : "") + text.substr(at);
  int64_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, number, static_cast<int>(base));
  if (result.ptr != end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) rt.Fail("the integer does not fit into 64 bits");
  if (result.ec != std::errc()) return std::nullopt;
  return number;
}

Value IntFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "int", {"default", "base"});
  const int64_t base = bound[1] == nullptr ? 10 : RequireInt(rt, *bound[1], "int's base");
  if (base != 0 && (base < 2 || base > 36)) rt.Fail("int: the base must be 0 or 2..36");
  if (input.is_integral()) return Value::Int(input.integral());
  if (input.is(Value::Type::kWideInt)) return input;
  std::optional<int64_t> number;
  if (IsText(input)) number = ParseInt(rt, input, base);
  if (!number.has_value()) {
    // "42.23" | int is 42.
    const std::optional<double> as_float = ParseFloat(rt, input);
    if (as_float.has_value()) number = FloatToInt(rt, *as_float);
  }
  if (number.has_value()) return Value::Int(*number);
  return bound[0] == nullptr ? Value::Int(0) : *bound[0];
}

Value FloatFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "float", {"default"});
  if (const std::optional<double> number = ParseFloat(rt, input)) return Value::Float(*number);
  return bound[0] == nullptr ? Value::Float(0) : *bound[0];
}

Value AbsFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  Bind(rt, arguments, "abs", {});
  RequireDefined(rt, input);
  if (input.is(Value::Type::kFloat)) return Value::Float(std::fabs(input.as_float()));
  const int64_t number = RequireInt(rt, input, "abs");
  if (number == INT64_MIN) rt.Fail("the integer does not fit into 64 bits");
  return Value::Int(number < 0 ? -number : number);
}

// round() to `precision` decimal places: exact decimal value, halves to even, as in Python.
double RoundHalfEven(double number, int precision) {
  if (!std::isfinite(number)) return number;
  if (precision < 0) {
    const double scale = std::pow(10.0, -precision);
    return std::nearbyint(number / scale) * scale;
  }
  char buffer[400];
  std::snprintf(buffer, sizeof(buffer), "%.*f", precision, number);
  return std::strtod(buffer, nullptr);
}

Value RoundFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "round", {"precision", "method"});
  RequireDefined(rt, input);
  if (!input.is_number()) rt.Fail("round: '" + TypeName(input) + "' is not a number");
  const int64_t precision = bound[0] == nullptr ? 0 : RequireInt(rt, *bound[0], "the precision");
  if (precision < -20 || precision > 20) rt.Fail("round: the precision must be in [-20, 20]");
  const std::string_view method =
      bound[1] == nullptr ? "common" : RequireText(rt, *bound[1], "round's method").bytes();
  if (method == "common") {
    if (input.is_integral() && precision >= 0) return Value::Int(input.integral());
    if (input.is(Value::Type::kWideInt) && precision >= 0) return input;
    const double rounded = RoundHalfEven(input.number(), static_cast<int>(precision));
    if (!input.is_integral()) return Value::Float(rounded);
    return Value::Int(FloatToInt(rt, rounded).value_or(0));
  }
  if (method != "ceil" && method != "floor") {
    rt.Fail("round: the method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = input.number() * scale;
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  return Value::Float((whole + 0.0) / scale);  // Python's is an integer here, which has no -0
}

}  // namespace

const FilterTable& NumberFilters() {
  static const FilterTable table = {
      {"abs", AbsFilter},
      {"float", FloatFilter},
      {"int", IntFilter},
      {"round", RoundFilter},
  };
  return table;
}

}  // namespace tandem::engine
