#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/tensor/bfloat16.h"

namespace tandem::engine {

// Decoders of GGUF's block formats. Each writes the numbers of one block, bit-identical to the f32
// dequantisation of GGUF's own library. Private to this folder.

// Reads blocks byte by byte, because they may begin at any address.
struct BlockView {
  const std::byte* at;

  uint8_t Byte(int64_t i) const { return std::to_integer<uint8_t>(at[i]); }
  uint16_t Word(int64_t i) const { return static_cast<uint16_t>(Byte(i) | Byte(i + 1) << 8); }
  uint32_t Long(int64_t i) const { return Word(i) | static_cast<uint32_t>(Word(i + 2)) << 16; }
  float Half(int64_t i) const { return F16ToFloat(Word(i)); }
  // Sixteen bytes hold 32 numbers: the low nibbles are the first sixteen, the high nibbles the
  // rest.
  int Nibble(int64_t from, int64_t i) const {
    return i < 16 ? Byte(from + i) & 15 : Byte(from + i - 16) >> 4;
  }
  // Number i of a row of nibbles; the low one of a byte comes first.
  int NibbleInTurn(int64_t from, int64_t i) const { return Byte(from + i / 2) >> (i % 2 * 4) & 15; }
  // Bit i of a row of bits.
  int Bit(int64_t from, int64_t i) const { return Byte(from + i / 8) >> (i % 8) & 1; }
};

// Two and three bits with scales of groups of 16.
void DecodeQ2_K(BlockView block, float* out);
void DecodeQ3_K(BlockView block, float* out);
// Nibbles that index sixteen uneven steps.
void DecodeIQ4_NL(BlockView block, float* out);
void DecodeIQ4_XS(BlockView block, float* out);
// Powers of two and E2M1 (OCP Microscaling).
void DecodeMXFP4(BlockView block, float* out);
// -1, 0, 1.
void DecodeTQ1_0(BlockView block, float* out);
void DecodeTQ2_0(BlockView block, float* out);
// Indices into code books of four or eight numbers.
void DecodeIQ3_S(BlockView block, float* out);
void DecodeIQ3_XXS(BlockView block, float* out);
void DecodeIQ2_S(BlockView block, float* out);
void DecodeIQ2_XS(BlockView block, float* out);
void DecodeIQ2_XXS(BlockView block, float* out);
void DecodeIQ1_S(BlockView block, float* out);
void DecodeIQ1_M(BlockView block, float* out);

// The scale 2^(byte - 128), half of E8M0's, for numbers of E2M1 that are doubled.
float HalfE8m0(uint8_t byte);
// The doubled numbers of E2M1's sixteen codes.
inline constexpr int8_t kDoubledE2m1[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace tandem::engine
