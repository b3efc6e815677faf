#include "engine/kernels/block_formats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/check.h"
#include "engine/tensor/bfloat16.h"
#include "engine/tensor/six_bit_scales.h"

namespace tandem::engine {
namespace {

constexpr int64_t kPanelLanes = 16;
constexpr int64_t kStepBytes = 4 * kPanelLanes;

// Stores a lane's 32 values as nibbles; the first four of eight consecutive k are the low nibbles.
void PutNibbles(std::byte* group, int64_t lane, const uint8_t* values) {
  auto* bytes = reinterpret_cast<uint8_t*>(group + 4 * lane);
  for (int64_t i = 0; i < kGroupSize; i += 8) {
    for (int64_t j = 0; j < 4; ++j) {
      bytes[i / 8 * kStepBytes + j] = static_cast<uint8_t>(values[i + j] | values[i + 4 + j] << 4);
    }
  }
}

void GetNibbles(const std::byte* group, int64_t lane, uint8_t* values) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(group + 4 * lane);
  for (int64_t i = 0; i < kGroupSize; ++i) {
    const uint8_t both = bytes[i / 8 * kStepBytes + i % 4];
    values[i] = i % 8 < 4 ? both & 15 : both >> 4;
  }
}

// Stores a lane's 32 six-bit values: the low four bits as nibbles, then the high two.
void PutSixBits(std::byte* group, int64_t lane, const uint8_t* values) {
  uint8_t low[kGroupSize];
  for (int64_t i = 0; i < kGroupSize; ++i) low[i] = values[i] & 15;
  PutNibbles(group, lane, low);
  auto* bytes = reinterpret_cast<uint8_t*>(group + kInt4GroupBytes + 4 * lane);
  for (int64_t i = 0; i < kGroupSize; i += 16) {
    for (int64_t j = 0; j < 4; ++j) {
      const auto high = [&](int64_t step) { return values[i + 4 * step + j] >> 4 << 2 * step; };
      bytes[i / 16 * kStepBytes + j] = static_cast<uint8_t>(high(0) | high(1) | high(2) | high(3));
    }
  }
}

void GetSixBits(const std::byte* group, int64_t lane, uint8_t* values) {
  GetNibbles(group, lane, values);
  const auto* bytes = reinterpret_cast<const uint8_t*>(group + kInt4GroupBytes + 4 * lane);
  for (int64_t i = 0; i < kGroupSize; ++i) {
    const uint8_t four = bytes[i / 16 * kStepBytes + i % 4];
    values[i] = static_cast<uint8_t>(values[i] | (four >> i % 16 / 4 * 2 & 3) << 4);
  }
}

// Scales and minimums of one q4_k super-block in a panel.
struct SuperScales {
  uint16_t d[kPanelLanes];
  uint16_t dmin[kPanelLanes];
  struct {
    uint8_t scale[kPanelLanes];
    uint8_t minimum[kPanelLanes];
  } groups[kSuperGroups];
};
static_assert(sizeof(SuperScales) == kSuperScaleBytes);

SuperScales* SuperAt(std::byte* panel, int64_t k, int64_t super_block) {
  return reinterpret_cast<SuperScales*>(panel + GroupsOf(k) * kInt4GroupBytes) + super_block;
}

uint16_t* ScaleAt(BlockFormat format, std::byte* panel, int64_t k, int64_t group, int64_t lane) {
  TANDEM_DCHECK(format != BlockFormat::kNone && format != BlockFormat::kInt4K &&
                format != BlockFormat::kMxfp4);
  return reinterpret_cast<uint16_t*>(panel + GroupsOf(k) * GroupBytes(format)) +
         group * kPanelLanes + lane;
}

// The scale byte of a group in mxfp4.
std::byte* Mxfp4ScaleAt(std::byte* panel, int64_t k, int64_t group, int64_t lane) {
  return panel + GroupsOf(k) * kInt4GroupBytes + group * kMxfp4ScaleBytes + lane;
}

// The code of twice a number of E2M1.
uint8_t Mxfp4Code(int8_t doubled) {
  for (uint8_t code = 0; code < 16; ++code) {
    if (kMxfp4Numbers[code] == doubled + kMxfp4Offset) return code;
  }
  TANDEM_CHECK(false);
}

// Sixteen partial sums: loops over a group vectorise, and the result does not depend on the target.
struct Sums {
  float part[16] = {};
  float Total() const {
    float total = 0;
    for (const float p : part) total += p;
    return total;
  }
};

// Divides `values` by the scale, rounds, and limits to [low, high].
void RoundGroup(const float* values, float inverse, float low, float high, float* q) {
  for (int64_t i = 0; i < kGroupSize; ++i) {
    q[i] = std::min(high, std::max(low, std::nearbyint(values[i] * inverse)));
  }
}

float AbsMax(const float* values) {
  float max = 0;
  for (int64_t i = 0; i < kGroupSize; ++i) max = std::max(max, std::abs(values[i]));
  return max;
}

bool AllFinite(const float* values) {
  bool finite = true;
  for (int64_t i = 0; i < kGroupSize; ++i) finite &= std::isfinite(values[i]);
  return finite;
}

// The nearest f16 to absmax / steps. Subnormal scales have few digits: if the nearest one puts the
// largest value above `limit` steps, returns the next larger f16.
uint16_t ScaleFor(float absmax, float steps, float limit) {
  uint16_t scale = FloatToF16(absmax / steps);
  if (F16ToFloat(scale) * limit < absmax && scale < 0x7c00) ++scale;
  return scale;
}

void QuantizeInt8(const float* values, BlockGroup& out) {
  out.scale = ScaleFor(AbsMax(values), 127, 127.5f);
  const float scale = F16ToFloat(out.scale);
  if (!std::isfinite(scale) || scale == 0) return;
  float q[kGroupSize];
  RoundGroup(values, 1 / scale, -127, 127, q);
  for (int64_t i = 0; i < kGroupSize; ++i) out.q[i] = static_cast<int8_t>(q[i]);
}

// The ranges [-8, 7] and [-32, 31] reach further down. The value of largest magnitude therefore
// becomes about -8 (or -32), and the scale has the opposite sign. The search tries scales slightly
// smaller and larger. For each, the best multiple of the rounded vector q is its projection, and
// the squared error is least where (x.q)^2 / q.q is greatest.
void QuantizeBySearch(const float* values, float levels, BlockGroup& out) {
  float extreme = 0;
  for (int64_t i = 0; i < kGroupSize; ++i) {
    if (std::abs(values[i]) > std::abs(extreme)) extreme = values[i];
  }
  const auto finish = [&](float wanted) {
    out.scale = wanted == 0 ? uint16_t{0} : FloatToF16(wanted);  // no negative zero
    const float scale = F16ToFloat(out.scale);
    if (!std::isfinite(scale) || scale == 0) return;
    float q[kGroupSize];
    RoundGroup(values, 1 / scale, -levels, levels - 1, q);
    for (int64_t i = 0; i < kGroupSize; ++i) out.q[i] = static_cast<int8_t>(q[i]);
  };
  // The inverses below must be finite; sums of squares must neither overflow nor vanish.
  if (std::abs(extreme) < 0x1p-40f || std::abs(extreme) > 0x1p40f) return finish(extreme / -levels);
  float best_scale = extreme / -levels;
  float best = -1;
  for (int step = -5; step <= 5; ++step) {
    const float inverse = -(levels + 0.2f * static_cast<float>(step)) / extreme;
    float q[kGroupSize];
    RoundGroup(values, inverse, -levels, levels - 1, q);
    Sums xq;
    Sums qq;
    for (int64_t i = 0; i < kGroupSize; i += 16) {
      for (int64_t lane = 0; lane < 16; ++lane) {
        xq.part[lane] += values[i + lane] * q[i + lane];
        qq.part[lane] += q[i + lane] * q[i + lane];
      }
    }
    const float scale = xq.Total() / qq.Total();
    const float gain = xq.Total() * scale;
    if (gain > best) {
      best = gain;
      best_scale = scale;
    }
  }
  finish(best_scale);
}

// The stored integers of a group in int8's order: [8 steps of k][16 lanes][4].
void GetSteps(BlockFormat format, const std::byte* panel, int64_t group, uint8_t* steps) {
  if (format == BlockFormat::kInt8) {
    std::memcpy(steps, panel + group * kInt8GroupBytes, kInt8GroupBytes);
    return;
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(panel + group * GroupBytes(format));
  for (int64_t two = 0; two < kGroupSize / 8; ++two) {
    for (int64_t i = 0; i < kStepBytes; ++i) {
      steps[2 * two * kStepBytes + i] = bytes[two * kStepBytes + i] & 15;
      steps[(2 * two + 1) * kStepBytes + i] =
          static_cast<uint8_t>(bytes[two * kStepBytes + i] >> 4);
    }
  }
  if (format == BlockFormat::kMxfp4) {
    for (int64_t i = 0; i < kInt8GroupBytes; ++i) steps[i] = kMxfp4Numbers[steps[i]];
  }
  if (format != BlockFormat::kInt6) return;
  const uint8_t* high = bytes + kInt4GroupBytes;
  for (int64_t step = 0; step < kGroupSize / 4; ++step) {
    for (int64_t i = 0; i < kStepBytes; ++i) {
      const int high_bits = high[step / 4 * kStepBytes + i] >> (2 * (step % 4)) & 3;
      steps[step * kStepBytes + i] |= static_cast<uint8_t>(high_bits << 4);
    }
  }
}

// The bits of a finite float rounded to bf16.
uint32_t RoundFinite(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

}  // namespace

const char* BlockFormatName(BlockFormat format) {
  TANDEM_CHECK(format != BlockFormat::kNone);
  if (format == BlockFormat::kInt4K) return "q4_k";
  if (format == BlockFormat::kInt6) return "int6";
  if (format == BlockFormat::kMxfp4) return "mxfp4";
  return format == BlockFormat::kInt8 ? "int8" : "int4";
}

bool FitsBlocks(BlockFormat format, int64_t k) {
  TANDEM_CHECK(format != BlockFormat::kNone);
  return format != BlockFormat::kInt4K || k % kSuperSize == 0;
}

int64_t GroupBytes(BlockFormat format) {
  TANDEM_CHECK(format != BlockFormat::kNone);
  if (format == BlockFormat::kInt6) return kInt6GroupBytes;
  return format == BlockFormat::kInt8 ? kInt8GroupBytes : kInt4GroupBytes;
}

int32_t BlockOffset(BlockFormat format) {
  TANDEM_CHECK(format != BlockFormat::kNone);
  if (format == BlockFormat::kInt4K) return 0;
  if (format == BlockFormat::kInt6) return kInt6Offset;
  if (format == BlockFormat::kMxfp4) return kMxfp4Offset;
  return format == BlockFormat::kInt8 ? kInt8Offset : kInt4Offset;
}

int64_t BlockPanelBytes(BlockFormat format, int64_t k) {
  TANDEM_CHECK(FitsBlocks(format, k));
  if (format == BlockFormat::kInt4K) {
    return CheckedMul(k / kSuperSize, kSuperGroups * kInt4GroupBytes + kSuperScaleBytes,
                      "panel bytes");
  }
  const int64_t scales = format == BlockFormat::kMxfp4 ? kMxfp4ScaleBytes : kGroupScaleBytes;
  return RoundUp<int64_t>(CheckedMul(GroupsOf(k), GroupBytes(format) + scales, "panel bytes"), 64);
}

float GroupScale(BlockFormat format, const BlockGroup& group) {
  if (format != BlockFormat::kMxfp4) return F16ToFloat(group.scale);
  return group.scale == 255 ? std::numeric_limits<float>::infinity()
                            : std::ldexp(1.0f, group.scale - 128);
}

void PutGroup(BlockFormat format, std::byte* panel, int64_t k, int64_t group, int64_t lane,
              const BlockGroup& values) {
  if (format == BlockFormat::kMxfp4) {
    uint8_t codes[kGroupSize];
    for (int64_t i = 0; i < kGroupSize; ++i) codes[i] = Mxfp4Code(values.q[i]);
    *Mxfp4ScaleAt(panel, k, group, lane) = static_cast<std::byte>(values.scale);
    return PutNibbles(panel + group * kInt4GroupBytes, lane, codes);
  }
  *ScaleAt(format, panel, k, group, lane) = values.scale;
  if (format == BlockFormat::kInt8) {
    auto* bytes = reinterpret_cast<uint8_t*>(panel + group * kInt8GroupBytes + 4 * lane);
    for (int64_t i = 0; i < kGroupSize; ++i) {
      bytes[i / 4 * kStepBytes + i % 4] = static_cast<uint8_t>(values.q[i] + kInt8Offset);
    }
    return;
  }
  uint8_t stored[kGroupSize];
  for (int64_t i = 0; i < kGroupSize; ++i) {
    stored[i] = static_cast<uint8_t>(values.q[i] + BlockOffset(format));
  }
  std::byte* to = panel + group * GroupBytes(format);
  if (format == BlockFormat::kInt6) return PutSixBits(to, lane, stored);
  PutNibbles(to, lane, stored);
}

BlockGroup GetGroup(BlockFormat format, const std::byte* panel, int64_t k, int64_t group,
                    int64_t lane) {
  BlockGroup values;
  if (format == BlockFormat::kMxfp4) {
    uint8_t codes[kGroupSize];
    GetNibbles(panel + group * kInt4GroupBytes, lane, codes);
    for (int64_t i = 0; i < kGroupSize; ++i) {
      values.q[i] = static_cast<int8_t>(kMxfp4Numbers[codes[i]] - kMxfp4Offset);
    }
    const std::byte* scale = Mxfp4ScaleAt(const_cast<std::byte*>(panel), k, group, lane);
    values.scale = std::to_integer<uint16_t>(*scale);
    return values;
  }
  values.scale = *ScaleAt(format, const_cast<std::byte*>(panel), k, group, lane);
  if (format == BlockFormat::kInt8) {
    const auto* bytes =
        reinterpret_cast<const uint8_t*>(panel + group * kInt8GroupBytes + 4 * lane);
    for (int64_t i = 0; i < kGroupSize; ++i) {
      values.q[i] = static_cast<int8_t>(bytes[i / 4 * kStepBytes + i % 4] - kInt8Offset);
    }
    return values;
  }
  uint8_t stored[kGroupSize];
  const std::byte* from = panel + group * GroupBytes(format);
  if (format == BlockFormat::kInt6) {
    GetSixBits(from, lane, stored);
  } else {
    GetNibbles(from, lane, stored);
  }
  for (int64_t i = 0; i < kGroupSize; ++i) {
    values.q[i] = static_cast<int8_t>(stored[i] - BlockOffset(format));
  }
  return values;
}

// A super-block of Q4_K: f16 d, f16 dmin, twelve bytes of eight scales and eight minimums, then the
// nibbles of 64 elements per 32 bytes, low nibbles first.
void PutQ4K(std::byte* panel, int64_t k, int64_t super_block, int64_t lane, const std::byte* from) {
  SuperScales* to = SuperAt(panel, k, super_block);
  std::memcpy(&to->d[lane], from, sizeof(uint16_t));
  std::memcpy(&to->dmin[lane], from + 2, sizeof(uint16_t));
  const auto* packed = reinterpret_cast<const uint8_t*>(from + 4);
  for (int64_t g = 0; g < kSuperGroups; ++g) {
    const SixBitScale numbers = ReadSixBitScale(packed, g);
    to->groups[g].scale[lane] = numbers.scale;
    to->groups[g].minimum[lane] = numbers.minimum;
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(from + 16);
  for (int64_t g = 0; g < kSuperGroups; ++g) {
    uint8_t nibbles[kGroupSize];
    for (int64_t i = 0; i < kGroupSize; ++i) {
      const uint8_t both = bytes[g / 2 * kGroupSize + i];
      nibbles[i] = g % 2 == 0 ? both & 15 : both >> 4;
    }
    PutNibbles(panel + (super_block * kSuperGroups + g) * kInt4GroupBytes, lane, nibbles);
  }
}

ScaledGroup GetScaledGroup(const std::byte* panel, int64_t k, int64_t group, int64_t lane) {
  const SuperScales& super = *SuperAt(const_cast<std::byte*>(panel), k, group / kSuperGroups);
  const auto& numbers = super.groups[group % kSuperGroups];
  ScaledGroup values;
  values.scale = F16ToFloat(super.d[lane]) * numbers.scale[lane];
  values.minimum = F16ToFloat(super.dmin[lane]) * numbers.minimum[lane];
  GetNibbles(panel + group * kInt4GroupBytes, lane, values.q);
  return values;
}

void DequantizeGroup(BlockFormat format, const std::byte* panel, int64_t k, int64_t group,
                     int64_t lane, float* values) {
  if (format == BlockFormat::kInt4K) {
    const ScaledGroup from = GetScaledGroup(panel, k, group, lane);
    for (int64_t i = 0; i < kGroupSize; ++i) values[i] = from.scale * from.q[i] - from.minimum;
    return;
  }
  const BlockGroup from = GetGroup(format, panel, k, group, lane);
  const float scale = GroupScale(format, from);
  for (int64_t i = 0; i < kGroupSize; ++i) values[i] = scale * static_cast<float>(from.q[i]);
}

void TransposeGroup(BlockFormat format, const std::byte* panel, int64_t k, int64_t group,
                    int64_t pairs, int64_t halves, uint16_t* out, int64_t stride) {
  // One entry per byte of a step, so that the loops below run over neighbours and vectorise.
  float scales[kStepBytes];
  float minimums[kStepBytes];
  for (int64_t lane = 0; lane < kPanelLanes; ++lane) {
    float scale = 0;
    float minimum = 0;
    if (format == BlockFormat::kInt4K) {
      const SuperScales& super = *SuperAt(const_cast<std::byte*>(panel), k, group / kSuperGroups);
      const auto& numbers = super.groups[group % kSuperGroups];
      scale = F16ToFloat(super.d[lane]) * numbers.scale[lane];
      minimum = F16ToFloat(super.dmin[lane]) * numbers.minimum[lane];
    } else if (format == BlockFormat::kMxfp4) {
      const std::byte e = *Mxfp4ScaleAt(const_cast<std::byte*>(panel), k, group, lane);
      scale = GroupScale(format, {.scale = std::to_integer<uint16_t>(e)});
    } else {
      scale = F16ToFloat(*ScaleAt(format, const_cast<std::byte*>(panel), k, group, lane));
    }
    for (int64_t j = 0; j < 4; ++j) {
      scales[4 * lane + j] = scale;
      minimums[4 * lane + j] = minimum;
    }
  }
  uint8_t steps[kInt8GroupBytes];
  GetSteps(format, panel, group, steps);
  const int32_t offset = BlockOffset(format);
  for (int64_t step = 0; step < 4 * halves; ++step) {
    uint32_t rounded[kStepBytes];
    for (int64_t i = 0; i < kStepBytes; ++i) {
      const int32_t q = static_cast<int32_t>(steps[step * kStepBytes + i]) - offset;
      rounded[i] = RoundFinite(scales[i] * static_cast<float>(q) - minimums[i]);
    }
    uint16_t* to = out + step / 4 * stride + step % 4 * 8;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      uint32_t both[4];
      for (int64_t j = 0; j < 4; ++j) {
        both[j] = rounded[8 * pair + j] | rounded[8 * pair + 4 + j] << 16;
      }
      std::memcpy(to + pair * 2 * kPanelLanes, both, sizeof both);
    }
  }
}

BlockGroup QuantizeGroup(BlockFormat format, const float* values) {
  TANDEM_CHECK(format != BlockFormat::kNone && format != BlockFormat::kInt4K &&
               format != BlockFormat::kMxfp4);
  BlockGroup out;
  if (!AllFinite(values)) {
    out.scale = 0x7e00;  // NaN
  } else if (format == BlockFormat::kInt8) {
    QuantizeInt8(values, out);
  } else {
    QuantizeBySearch(values, static_cast<float>(BlockOffset(format)), out);
  }
  return out;
}

}  // namespace tandem::engine
