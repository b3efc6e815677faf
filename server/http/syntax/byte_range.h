#pragma once

#include <cstdint>
#include <string_view>

namespace tandem::server {

struct ByteRange {
  int64_t offset = 0;
  int64_t bytes = 0;
  bool operator==(const ByteRange&) const = default;
};

// What a Range header asks of something that has so many bytes (RFC 9110 §14). More than one range,
// another unit, or what cannot be read is no error: it is answered with the whole.
struct RangeAnswer {
  enum class Kind { kWhole, kPart, kUnsatisfiable };
  Kind kind = Kind::kWhole;
  ByteRange range;
};
RangeAnswer ParseRange(std::string_view header, int64_t total_bytes);

}  // namespace tandem::server
