#pragma once

#include <bit>
#include <cstdint>

namespace tandem::engine {

// The bits of a bfloat16, which is the upper half of a float.
using Bf16 = uint16_t;

inline float Bf16ToFloat(Bf16 bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even. NaN becomes a quiet NaN, overflow infinity.
inline Bf16 FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Bf16>((bits >> 16) | 0x0040u);
  return static_cast<Bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Converts an IEEE half to float, exactly.
inline float F16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float tiny = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal
  return sign != 0 ? -tiny : tiny;
}

// Converts a float to IEEE half: to nearest, ties to even. NaN becomes a quiet NaN, overflow
// infinity.
inline uint16_t FloatToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x47800000u) return sign | 0x7c00u;  // 2^16 and above
  if (magnitude < 0x38800000u) {
    // Below 2^-14 halves are multiples of 2^-24, and so is every float in [0.5, 1).
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace tandem::engine
