#pragma once

#include <cstdint>
#include <string_view>

namespace tandem::server {

struct ByteRange {
  int64_t offset = 0;
  int64_t bytes = 0;
  bool operator==(const ByteRange&) const = default;
};

// The meaning of a Range header for `total_bytes` bytes (RFC 9110 §14). Several ranges, other units
// and malformed values are not errors: the answer is the whole.
struct RangeAnswer {
  enum class Kind { kWhole, kPart, kUnsatisfiable };
  Kind kind = Kind::kWhole;
  ByteRange range;
};
RangeAnswer ParseRange(std::string_view header, int64_t total_bytes);

}  // namespace tandem::server
