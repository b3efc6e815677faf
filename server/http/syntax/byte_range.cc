#include "server/http/syntax/byte_range.h"

#include <algorithm>
#include <optional>

namespace tandem::server {
namespace {

// Digits only; a number that overflows becomes the largest value.
std::optional<int64_t> Number(std::string_view text) {
  if (text.empty()) return std::nullopt;
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value > (INT64_MAX - 9) / 10 ? INT64_MAX / 2 : value * 10 + (c - '0');
  }
  return value;
}

}  // namespace

RangeAnswer ParseRange(std::string_view header, int64_t total_bytes) {
  using Kind = RangeAnswer::Kind;
  constexpr std::string_view kUnit = "bytes=";
  if (!header.starts_with(kUnit)) return {};
  header.remove_prefix(kUnit.size());
  const size_t dash = header.find('-');
  if (dash == std::string_view::npos) return {};
  const std::string_view first_text = header.substr(0, dash);
  const std::string_view last_text = header.substr(dash + 1);
  const std::optional<int64_t> first = Number(first_text);
  const std::optional<int64_t> last = Number(last_text);
  if (first_text.empty()) {  // a suffix range: the last bytes
    if (!last) return {};
    if (*last == 0 || total_bytes == 0) return {Kind::kUnsatisfiable, {}};
    const int64_t n = std::min(*last, total_bytes);
    return {Kind::kPart, {total_bytes - n, n}};
  }
  if (!first || (!last && !last_text.empty()) || (last && *last < *first)) return {};
  if (*first >= total_bytes) return {Kind::kUnsatisfiable, {}};
  const int64_t end = std::min(last.value_or(total_bytes - 1), total_bytes - 1);
  return {Kind::kPart, {*first, end - *first + 1}};
}

}  // namespace tandem::server
