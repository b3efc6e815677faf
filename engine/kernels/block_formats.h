#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::engine {

// Weights in blocks of integers. A weight W [n, k] (out, in) is cut along k into groups of 32 that
// share a scale. Element (n, k) is scale * q with q an integer of the format. Sixteen rows make a
// panel, as with bf16: vector lanes are outputs and k runs in sequence.
//
// A panel has `groups` = ceil(k / 32) groups. It holds the integers of all groups, then their
// scales (f16), then zeros up to a multiple of 64 bytes.
//   int8: [groups][8][16 lanes][4]  one byte q + 128; four k of a lane are adjacent, as vpdpbusd
//         reads them (unsigned times signed)
//   int4: [groups][4][16 lanes][4]  two nibbles q + 8 per byte. The first four of eight k are the
//         low nibbles, the last four the high ones: one mask and one shift make two int8 steps.
//   int6: [groups] of [4][16 lanes][4] and [2][16 lanes][4], holding q + 32. The low four bits come
//         first, in int4's order, then the high two. Byte j of a lane's high bits has those of
//         k = j, 4 + j, 8 + j and 12 + j of sixteen consecutive k, from its lowest bits upwards.
//   then  [groups][16 lanes]        f16 scales
// Rows beyond n and inputs beyond k are zero: q = 0, and for rows the scale too. Panels are
// contiguous. Two formats of GGUF are rearranged into these without changing any number: Q8_0 (f16
// scale, 32 times int8) and Q4_0 (f16 scale, 32 nibbles of value + 8).
//
// Likewise, q4_k holds GGUF's Q4_K. Eight groups make a super-block with two f16 numbers d and
// dmin. A group has a scale s and a minimum m of six bits each. An element is d * s * q - dmin * m
// with q from 0 to 15; k must be a multiple of 256. A panel holds the integers of all groups in
// int4's order, without an offset. 320 bytes per super-block follow:
//   [16 lanes] f16 d, [16 lanes] f16 dmin, [8 groups] of [16 lanes] u8 s, [16 lanes] u8 m
// A byte for six bits costs 2.8 % more reads than Q4_K itself, and only one conversion to widen.
//
// mxfp4 is MXFP4 of the OCP Microscaling formats (MX, version 1.0): groups of 32 numbers of four
// bits (E2M1: a sign, 0, 0.5, 1, 1.5, 2, 3, 4 or 6) and a scale 2^(e - 127) with e in one byte
// (E8M0). A panel holds the four-bit codes of all groups in int4's order, then [groups][16 lanes]
// bytes e. Kernels look the codes up as twice the number plus 12, and halve the scale: products
// are exact. 4.25 bits a weight, as in the files.
enum class BlockFormat : uint8_t { kNone, kInt8, kInt4, kInt4K, kInt6, kMxfp4 };
// All formats in the enum's order. Each kernel table gets one product for each.
inline constexpr BlockFormat kBlockFormats[] = {BlockFormat::kInt8, BlockFormat::kInt4,
                                                BlockFormat::kInt4K, BlockFormat::kInt6,
                                                BlockFormat::kMxfp4};

// Raise it when the same weights get different bytes.
inline constexpr uint32_t kBlockLayoutVersion = 1;

inline constexpr int64_t kGroupSize = 32;
// Bytes of the integers of one group of a panel.
inline constexpr int64_t kInt8GroupBytes = 16 * kGroupSize;
inline constexpr int64_t kInt4GroupBytes = 8 * kGroupSize;
inline constexpr int64_t kInt6GroupBytes = 12 * kGroupSize;
// Bytes of the scales of one group of a panel; not for q4_k and mxfp4.
inline constexpr int64_t kGroupScaleBytes = 16 * 2;
inline constexpr int64_t kMxfp4ScaleBytes = 16;
// q4_k: groups and elements of a super-block, and the bytes of its scales and minimums in a panel.
inline constexpr int64_t kSuperGroups = 8;
inline constexpr int64_t kSuperSize = kSuperGroups * kGroupSize;
inline constexpr int64_t kSuperScaleBytes = 2 * 16 * 2 + kSuperGroups * 2 * 16;
// A super-block of one row in a GGUF file.
inline constexpr int64_t kQ4KBytes = 2 * 2 + 12 + kSuperSize / 2;
// The offset added to q in storage.
inline constexpr int32_t kInt8Offset = 128;
inline constexpr int32_t kInt4Offset = 8;
inline constexpr int32_t kInt6Offset = 32;
// By code of E2M1: twice the number, plus the offset.
inline constexpr int32_t kMxfp4Offset = 12;
inline constexpr uint8_t kMxfp4Numbers[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                              12, 11, 10, 9,  8,  6,  4,  0};

// "int8" and "int4" as in --dtype, "int6", "q4_k", "mxfp4". REQUIRES: a format.
const char* BlockFormatName(BlockFormat format);

inline int64_t GroupsOf(int64_t k) { return (k + kGroupSize - 1) / kGroupSize; }
// REQUIRES (all below): a format, not kNone.
// Whether rows of k elements fit the format: q4_k needs whole super-blocks.
bool FitsBlocks(BlockFormat format, int64_t k);
int64_t GroupBytes(BlockFormat format);
int32_t BlockOffset(BlockFormat format);
// REQUIRES: FitsBlocks.
int64_t BlockPanelBytes(BlockFormat format, int64_t k);

// 32 weights of one output that share a scale.
struct BlockGroup {
  uint16_t scale = 0;  // f16; in mxfp4 the byte e
  int8_t q[kGroupSize] = {};
};
// The factor of q: the f16 as a number, or in mxfp4 2^(e - 128); infinite where e is 255 (NaN).
float GroupScale(BlockFormat format, const BlockGroup& group);

// Write a group to its panel and read it back. `k` is the weight's; q must be in the format's
// range, [-BlockOffset, BlockOffset - 1]; in mxfp4 it is twice a number of E2M1, and -0 becomes 0.
// REQUIRES: int8, int6, int4 or mxfp4.
void PutGroup(BlockFormat format, std::byte* panel, int64_t k, int64_t group, int64_t lane,
              const BlockGroup& values);
BlockGroup GetGroup(BlockFormat format, const std::byte* panel, int64_t k, int64_t group,
                    int64_t lane);

// 32 weights of one output in q4_k: scale * q - minimum. Scale and minimum are products of an f16
// and a six-bit number; f32 holds them and scale * q exactly.
struct ScaledGroup {
  float scale = 0;
  float minimum = 0;
  uint8_t q[kGroupSize] = {};
};

// Moves the kQ4KBytes of a Q4_K super-block, in GGUF's layout, into a panel of q4_k.
void PutQ4K(std::byte* panel, int64_t k, int64_t super_block, int64_t lane, const std::byte* from);
ScaledGroup GetScaledGroup(const std::byte* panel, int64_t k, int64_t group, int64_t lane);

// The 32 values of a group of any format. For q4_k they are bit-identical to GGUF's own f32
// dequantisation of Q4_K, because only the subtraction rounds.
void DequantizeGroup(BlockFormat format, const std::byte* panel, int64_t k, int64_t group,
                     int64_t lane, float* values);

// Transposes one group of all 16 rows of a panel, for products over the rows. Values are
// DequantizeGroup's rounded once to bf16 (to nearest even; they must be finite), in the panel
// layout of W^T. Writes k / 16 panels of `pairs` <= 8 pairs of rows. Element (row, k) is at
//   out[k / 16][row / 2][k % 16][row % 2], with panels `stride` elements apart.
// `halves` 1 writes the first 16 k only. REQUIRES: a format.
void TransposeGroup(BlockFormat format, const std::byte* panel, int64_t k, int64_t group,
                    int64_t pairs, int64_t halves, uint16_t* out, int64_t stride);

// Rounds 32 weights. int8: the scale is absmax / 127 as f16, q the nearest integers (even at ties).
// int4 and int6: tries a few scales around absmax / 8 (or / 32), each with its best fit, and keeps
// the one of least squared error. Values that are not finite, or exceed the f16 range of the scale,
// give a scale that is not finite. REQUIRES: int8, int6 or int4; nothing is rounded to q4_k and
// mxfp4, the formats of files.
BlockGroup QuantizeGroup(BlockFormat format, const float* values);

}  // namespace tandem::engine
