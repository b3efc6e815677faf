#include "engine/formats/stored/block_decoders.h"

#include <bit>
#include <limits>

namespace tandem::engine {
namespace {

// The steps of IQ4_NL and IQ4_XS, finer around zero.
constexpr int8_t kUnevenSteps[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

// Two bits of number i of a block of 256: 32 bytes hold four runs of 32 numbers.
int TwoBits(BlockView b, int64_t from, int64_t i) {
  return b.Byte(from + i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3;
}

// A digit of a byte that holds the digits of a fraction to the base 3, scaled to 256.
int Ternary(uint8_t byte, int power) {
  static constexpr int kPowers[] = {1, 3, 9, 27, 81};
  return static_cast<uint8_t>(byte * kPowers[power]) * 3 >> 8;
}

}  // namespace

// Layout: sixteen bytes with a scale and a minimum of four bits each, 64 bytes of two-bit numbers,
// d and dmin.
void DecodeQ2_K(BlockView b, float* out) {
  const float d = b.Half(80), dmin = b.Half(82);
  for (int64_t i = 0; i < 256; ++i) {
    const uint8_t both = b.Byte(i / 16);
    const float scale = d * static_cast<float>(both & 15);
    out[i] = scale * static_cast<float>(TwoBits(b, 16, i)) - dmin * static_cast<float>(both >> 4);
  }
}

// Layout: 32 bytes of upper bits (0: subtract 4), 64 bytes of two-bit numbers, twelve bytes of
// scales, d. Scales have six bits minus 32: four low bits in bytes 0-7, two high ones in 8-11.
void DecodeQ3_K(BlockView b, float* out) {
  constexpr int64_t kLow = 32, kScales = 96, kD = 108;
  const float d = b.Half(kD);
  for (int64_t i = 0; i < 256; ++i) {
    const int64_t group = i / 16;
    const int low = b.Byte(kScales + group % 8) >> (group / 8 * 4) & 15;
    const int high = b.Byte(kScales + 8 + group % 4) >> (group / 4 * 2) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    const int upper = b.Byte(i % 32) >> (i / 32) & 1;
    out[i] = scale * static_cast<float>(TwoBits(b, kLow, i) - (upper != 0 ? 0 : 4));
  }
}

void DecodeIQ4_NL(BlockView b, float* out) {
  const float d = b.Half(0);
  for (int64_t i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>(kUnevenSteps[b.Nibble(2, i)]);
  }
}

// Layout: d, two upper bits of eight scales, their four low bits, then nibbles by groups of 32.
void DecodeIQ4_XS(BlockView b, float* out) {
  const float d = b.Half(0);
  for (int64_t group = 0; group < 8; ++group) {
    const int high = b.Word(2) >> (2 * group) & 3;
    const float scale = d * static_cast<float>((b.NibbleInTurn(4, group) | high << 4) - 32);
    for (int64_t i = 0; i < 32; ++i) {
      *out++ = scale * static_cast<float>(kUnevenSteps[b.Nibble(8 + group * 16, i)]);
    }
  }
}

float HalfE8m0(uint8_t byte) {
  if (byte == 255) return std::numeric_limits<float>::quiet_NaN();  // as OCP's MX formats say
  // 2^-128 and 2^-127 are subnormal.
  const uint32_t bits = byte < 2 ? uint32_t{0x200000} << byte : (byte - uint32_t{1}) << 23;
  return std::bit_cast<float>(bits);
}

void DecodeMXFP4(BlockView b, float* out) {
  const float scale = HalfE8m0(b.Byte(0));
  for (int64_t i = 0; i < 32; ++i) {
    out[i] = scale * static_cast<float>(kDoubledE2m1[b.Nibble(1, i)]);
  }
}

// Layout: 32 bytes of five digits each, sixteen more, four bytes of four digits, d. Digit p of
// consecutive bytes makes consecutive numbers.
void DecodeTQ1_0(BlockView b, float* out) {
  const float d = b.Half(52);
  const auto run = [&](int64_t from, int64_t bytes, int digits) {
    for (int p = 0; p < digits; ++p) {
      for (int64_t i = 0; i < bytes; ++i) {
        *out++ = d * static_cast<float>(Ternary(b.Byte(from + i), p) - 1);
      }
    }
  };
  run(0, 32, 5);
  run(32, 16, 5);
  run(48, 4, 4);
}

void DecodeTQ2_0(BlockView b, float* out) {
  const float d = b.Half(64);
  for (int64_t i = 0; i < 256; ++i) out[i] = d * static_cast<float>(TwoBits(b, 0, i) - 1);
}

}  // namespace tandem::engine
