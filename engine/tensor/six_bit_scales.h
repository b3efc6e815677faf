#pragma once

#include <cstdint>

namespace tandem::engine {

// Scale and minimum of one of the eight groups of a Q4_K or Q5_K block, six bits each, packed in
// twelve bytes. The first four scales are the low six bits of bytes 0-3; their minimums those of
// bytes 4-7. The last four have their low four bits in bytes 8-11: scales in the low nibbles,
// minimums in the high ones. Their upper two bits are the upper bits of bytes 0-3 (scales) and 4-7
// (minimums).
struct SixBitScale {
  uint8_t scale;
  uint8_t minimum;
};
inline SixBitScale ReadSixBitScale(const uint8_t* packed, int64_t group) {
  const uint8_t scale = packed[group % 4], minimum = packed[4 + group % 4];
  if (group < 4) {
    return {static_cast<uint8_t>(scale & 63), static_cast<uint8_t>(minimum & 63)};
  }
  const uint8_t low = packed[4 + group];
  return {static_cast<uint8_t>((low & 15) | scale >> 6 << 4),
          static_cast<uint8_t>(low >> 4 | minimum >> 6 << 4)};
}

}  // namespace tandem::engine
