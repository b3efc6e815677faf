#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::engine {

// Weights in blocks of integers. A weight W [n, k] (out, in) is cut along k into groups of 32 that
// share a scale; element (n, k) is scale * q with q an integer of the format. Sixteen rows make a
// panel, as with bf16: vector lanes are outputs and k runs in sequence.
//
// A panel holds, for `groups` = ceil(k / 32) groups, first the integers of all groups, then their
// scales (f16), then zeros up to a multiple of 64 bytes:
//   int8: [groups][8][16 lanes][4]  one byte q + 128; four k of a lane side by side, as vpdpbusd
//         takes them (unsigned times signed)
//   int4: [groups][4][16 lanes][4]  two nibbles q + 8 a byte; of eight k the first four are the low
//         nibbles and the last four the high ones, so one mask and one shift make two int8 steps
//   then  [groups][16 lanes]        f16 scales
// Rows beyond n and inputs beyond k are zero: q = 0, and for rows the scale too. Panels follow one
// another. GGUF's Q8_0 (f16 scale, 32 times int8) and Q4_0 (f16 scale, 32 nibbles of value + 8) are
// rearranged into these without a change of any number.
enum class BlockFormat : uint8_t { kNone, kInt8, kInt4 };

// Raise it when the bytes of the same weights change.
inline constexpr uint32_t kBlockLayoutVersion = 1;

inline constexpr int64_t kGroupSize = 32;
// Bytes of the integers of one group of a panel.
inline constexpr int64_t kInt8GroupBytes = 16 * kGroupSize;
inline constexpr int64_t kInt4GroupBytes = 8 * kGroupSize;
// Bytes of the scales of one group of a panel.
inline constexpr int64_t kGroupScaleBytes = 16 * 2;
// What is added to q where it is stored.
inline constexpr int32_t kInt8Offset = 128;
inline constexpr int32_t kInt4Offset = 8;

// "int8", "int4", as users write them. REQUIRES: a format.
const char* BlockFormatName(BlockFormat format);

inline int64_t GroupsOf(int64_t k) { return (k + kGroupSize - 1) / kGroupSize; }
// REQUIRES (all below): a format, not kNone.
int64_t GroupBytes(BlockFormat format);
int32_t BlockOffset(BlockFormat format);
int64_t BlockPanelBytes(BlockFormat format, int64_t k);

// The 32 weights of one output that share a scale.
struct BlockGroup {
  uint16_t scale = 0;  // f16
  int8_t q[kGroupSize] = {};
};

// Moves a group in and out of its panel. `k` is the weight's; q must lie in the format's range,
// [-128, 127] or [-8, 7].
void PutGroup(BlockFormat format, std::byte* panel, int64_t k, int64_t group, int64_t lane,
              const BlockGroup& values);
BlockGroup GetGroup(BlockFormat format, const std::byte* panel, int64_t k, int64_t group,
                    int64_t lane);

// Rounds 32 weights. int8: the scale is absmax / 127 as f16, q the nearest integers (even at ties).
// int4: of a few scales around absmax / 8, each with its best fit, the one with the least squared
// error. Values that are not finite, or beyond the f16 range of the scale, give a scale that is not
// finite.
BlockGroup QuantizeGroup(BlockFormat format, const float* values);

}  // namespace tandem::engine
