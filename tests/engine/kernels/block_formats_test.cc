#include "engine/kernels/block_formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "engine/base/error.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::engine {
namespace {

constexpr BlockFormat kGroupFormats[] = {BlockFormat::kInt8, BlockFormat::kInt6,
                                         BlockFormat::kInt4};

BlockGroup RandomGroup(BlockFormat format, std::mt19937& rng) {
  BlockGroup group;
  if (format == BlockFormat::kMxfp4) {
    group.scale = static_cast<uint8_t>(rng());
    for (int8_t& q : group.q) q = static_cast<int8_t>(kMxfp4Numbers[rng() % 16] - kMxfp4Offset);
    return group;
  }
  group.scale = FloatToF16(std::normal_distribution<float>(0, 0.01f)(rng));
  const int low = -BlockOffset(format);
  std::uniform_int_distribution<int> q(low, -low - 1);
  for (int8_t& value : group.q) value = static_cast<int8_t>(q(rng));
  return group;
}

TEST(BlockFormats, AGroupComesBackAsItWasPutWhateverIsPutAroundIt) {
  for (const BlockFormat format : kBlockFormats) {
    if (format == BlockFormat::kInt4K) continue;  // moves whole super-blocks
    for (const int64_t k : {1, 32, 33, 96, 200}) {
      std::mt19937 rng(1);
      std::vector<std::byte> panel(static_cast<size_t>(BlockPanelBytes(format, k)));
      std::vector<BlockGroup> put;
      for (int64_t g = 0; g < GroupsOf(k); ++g) {
        for (int64_t lane = 0; lane < 16; ++lane) {
          put.push_back(RandomGroup(format, rng));
          PutGroup(format, panel.data(), k, g, lane, put.back());
        }
      }
      for (size_t i = 0; i < put.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        const BlockGroup got = GetGroup(format, panel.data(), k, at / 16, at % 16);
        EXPECT_EQ(got.scale, put[i].scale);
        EXPECT_TRUE(std::equal(got.q, got.q + kGroupSize, put[i].q));
      }
    }
  }
}

TEST(BlockFormats, APanelIsWholeCacheLines) {
  EXPECT_EQ(BlockPanelBytes(BlockFormat::kInt8, 64), 2 * (512 + 32));
  EXPECT_EQ(BlockPanelBytes(BlockFormat::kInt8, 65), 3 * (512 + 32) + 32);
  EXPECT_EQ(BlockPanelBytes(BlockFormat::kInt4, 2048), 64 * (256 + 32));
  EXPECT_EQ(BlockPanelBytes(BlockFormat::kInt6, 2048), 64 * (384 + 32));  // 6.5 bits per weight
  EXPECT_EQ(BlockPanelBytes(BlockFormat::kMxfp4, 2880), 90 * (256 + 16) + 32);
}

TEST(BlockFormats, StoredBytesFollowTheLayout) {
  BlockGroup group;
  for (int i = 0; i < kGroupSize; ++i) group.q[i] = static_cast<int8_t>(i % 16 - 8);
  group.scale = 0x1234;
  std::vector<std::byte> bytes(static_cast<size_t>(BlockPanelBytes(BlockFormat::kInt8, 64)));

  PutGroup(BlockFormat::kInt8, bytes.data(), 64, 1, 3, group);
  EXPECT_EQ(static_cast<int>(bytes[512 + 2 * 64 + 3 * 4 + 1]), 9 - 8 + 128);  // k = 9
  EXPECT_EQ(static_cast<int>(bytes[2 * 512 + 32 + 2 * 3]), 0x34);

  PutGroup(BlockFormat::kInt4, bytes.data(), 64, 1, 3, group);
  EXPECT_EQ(static_cast<int>(bytes[256 + 1 * 64 + 3 * 4 + 1]), 9 | 13 << 4);  // k = 9 and 13
}

TEST(BlockFormats, SixBitsLieAsNibblesAndPairsOfHighBits) {
  BlockGroup group;
  for (int i = 0; i < kGroupSize; ++i) group.q[i] = static_cast<int8_t>(i * 5 % 64 - 32);
  group.scale = 0x1234;
  std::vector<std::byte> bytes(static_cast<size_t>(BlockPanelBytes(BlockFormat::kInt6, 64)));

  PutGroup(BlockFormat::kInt6, bytes.data(), 64, 1, 3, group);

  const auto stored = [](int k) { return k * 5 % 64; };
  const auto at = [&](size_t i) { return static_cast<int>(bytes[384 + i]); };
  EXPECT_EQ(at(2 * 64 + 3 * 4 + 1), (stored(17) & 15) | (stored(21) & 15) << 4);
  EXPECT_EQ(at(256 + 64 + 3 * 4 + 1),
            stored(17) >> 4 | stored(21) >> 4 << 2 | stored(25) >> 4 << 4 | stored(29) >> 4 << 6);
  EXPECT_EQ(static_cast<int>(bytes[2 * 384 + 32 + 2 * 3]), 0x34);
}

TEST(BlockFormats, Mxfp4LiesAsNibblesAndOneScaleByte) {
  BlockGroup group;
  group.scale = 0x7b;
  for (int i = 0; i < kGroupSize; ++i) {
    group.q[i] = static_cast<int8_t>(kMxfp4Numbers[i % 8] - kMxfp4Offset);
  }
  group.q[9] = -12;
  std::vector<std::byte> bytes(static_cast<size_t>(BlockPanelBytes(BlockFormat::kMxfp4, 64)));

  PutGroup(BlockFormat::kMxfp4, bytes.data(), 64, 1, 3, group);

  EXPECT_EQ(static_cast<int>(bytes[256 + 1 * 64 + 3 * 4 + 1]), 15 | 5 << 4);  // k = 9 and 13
  EXPECT_EQ(static_cast<int>(bytes[2 * 256 + 16 + 3]), 0x7b);
}

// The sixteen numbers of E2M1 times 2^(e - 127), from subnormal products to the largest.
TEST(BlockFormats, Mxfp4HoldsTheNumbersOfTheSpecificationExactly) {
  constexpr float kNumbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  std::vector<std::byte> panel(static_cast<size_t>(BlockPanelBytes(BlockFormat::kMxfp4, 32)));
  for (const int e : {0, 1, 2, 3, 100, 126, 127, 128, 200, 252}) {
    for (int lane = 0; lane < 16; ++lane) {
      BlockGroup group;
      group.scale = static_cast<uint16_t>(e);
      for (int i = 0; i < kGroupSize; ++i) {
        const int code = (i + lane) % 16;
        group.q[i] = static_cast<int8_t>(kMxfp4Numbers[code] - kMxfp4Offset);
      }
      PutGroup(BlockFormat::kMxfp4, panel.data(), 32, 0, lane, group);
    }
    std::vector<uint16_t> transposed(2 * 8 * 32);
    TransposeGroup(BlockFormat::kMxfp4, panel.data(), 32, 0, 8, 2, transposed.data(), 8 * 32);
    for (int lane = 0; lane < 16; ++lane) {
      float values[kGroupSize];
      DequantizeGroup(BlockFormat::kMxfp4, panel.data(), 32, 0, lane, values);
      for (int i = 0; i < kGroupSize; ++i) {
        const int code = (i + lane) % 16;
        const float want = std::ldexp(code < 8 ? kNumbers[code] : -kNumbers[code - 8], e - 127);
        EXPECT_EQ(values[i], want) << "e " << e << " code " << code;
        const auto at =
            static_cast<size_t>(i / 16 * 8 * 32 + lane / 2 * 32 + i % 16 * 2 + lane % 2);
        EXPECT_EQ(std::bit_cast<float>(uint32_t{transposed[at]} << 16), want) << "e " << e;
      }
    }
  }
}

TEST(BlockFormats, Mxfp4ScaleOf255IsNoNumber) {
  EXPECT_FALSE(std::isfinite(GroupScale(BlockFormat::kMxfp4, {.scale = 255})));
  EXPECT_EQ(GroupScale(BlockFormat::kMxfp4, {.scale = 254}), 0x1p126f);
  EXPECT_EQ(GroupScale(BlockFormat::kMxfp4, {.scale = 0}), 0x1p-128f);
}

// GGUF block types: an f16 scale, then 32 bytes, or 16 bytes whose low nibbles are the first half.
// The value is scale * q, or scale * (nibble - 8).
TEST(BlockFormats, BlocksOfGgufTypesMoveInExactly) {
  std::mt19937 rng(2);
  for (int round = 0; round < 200; ++round) {
    std::array<uint8_t, 32> bytes;
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng());
    const auto scale = static_cast<uint16_t>(rng());  // any bits: subnormal, infinite, NaN
    BlockGroup q8{.scale = scale};
    BlockGroup q4{.scale = scale};
    for (size_t i = 0; i < 32; ++i) {
      q8.q[i] = static_cast<int8_t>(bytes[i]);
      q4.q[i] = static_cast<int8_t>((i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4) - 8);
    }
    std::vector<std::byte> panel(2 * 544);
    for (const auto& [format, group] :
         {std::pair{BlockFormat::kInt8, q8}, {BlockFormat::kInt4, q4}}) {
      PutGroup(format, panel.data(), 64, 1, 7, group);
      const BlockGroup got = GetGroup(format, panel.data(), 64, 1, 7);
      EXPECT_EQ(got.scale, group.scale);
      EXPECT_TRUE(std::equal(got.q, got.q + kGroupSize, group.q));
    }
  }
}

// Q4_K as GGUF's code decodes it. The twelve scale bytes are three 32-bit words. Two combined words
// give the eight scales, two others the eight minimums.
std::vector<float> DequantizeQ4K(const std::byte* block) {
  uint16_t d[2];
  std::memcpy(d, block, 4);
  uint32_t in[3];
  std::memcpy(in, block + 4, 12);
  const uint32_t out[4] = {
      in[0] & 0x3f3f3f3f, (in[2] & 0x0f0f0f0f) | (in[0] >> 6 & 0x03030303) << 4, in[1] & 0x3f3f3f3f,
      (in[2] >> 4 & 0x0f0f0f0f) | (in[1] >> 6 & 0x03030303) << 4};
  uint8_t numbers[16];
  std::memcpy(numbers, out, 16);
  std::vector<float> values;
  for (int i = 0; i < kSuperSize; ++i) {
    const auto byte = static_cast<uint8_t>(block[16 + i / 64 * 32 + i % 32]);
    const int q = i % 64 < 32 ? byte & 15 : byte >> 4;
    const float scale = F16ToFloat(d[0]) * static_cast<float>(numbers[i / 32]);
    const float minimum = F16ToFloat(d[1]) * static_cast<float>(numbers[8 + i / 32]);
    values.push_back(scale * static_cast<float>(q) - minimum);
  }
  return values;
}

TEST(BlockFormats, SuperBlocksOfQ4KKeepTheirValuesBitByBit) {
  std::mt19937 rng(5);
  constexpr int64_t kK = 3 * kSuperSize;
  std::vector<std::byte> panel(static_cast<size_t>(BlockPanelBytes(BlockFormat::kInt4K, kK)));
  for (int round = 0; round < 20; ++round) {
    std::vector<std::byte> source(16 * 3 * kQ4KBytes);
    for (std::byte& byte : source) byte = static_cast<std::byte>(rng());  // any f16, too
    for (int64_t i = 0; i < 16 * 3; ++i) {
      PutQ4K(panel.data(), kK, i % 3, i / 3, source.data() + i * kQ4KBytes);
    }
    for (int64_t i = 0; i < 16 * 3; ++i) {
      const std::vector<float> expected = DequantizeQ4K(source.data() + i * kQ4KBytes);
      for (int64_t g = 0; g < kSuperGroups; ++g) {
        float values[kGroupSize];
        DequantizeGroup(BlockFormat::kInt4K, panel.data(), kK, i % 3 * kSuperGroups + g, i / 3,
                        values);
        for (int64_t j = 0; j < kGroupSize; ++j) {
          const float want = expected[static_cast<size_t>(g * kGroupSize + j)];
          if (std::isnan(want)) {
            EXPECT_TRUE(std::isnan(values[j]));
          } else {
            EXPECT_EQ(std::bit_cast<uint32_t>(values[j]), std::bit_cast<uint32_t>(want));
          }
        }
      }
    }
  }
}

TEST(BlockFormats, ASuperBlockLiesWhereTheLayoutSays) {
  std::vector<std::byte> block(kQ4KBytes);
  const auto set = [&](size_t at, int value) { block[at] = static_cast<std::byte>(value); };
  set(0, 0x34), set(1, 0x12);         // d
  set(2, 0x78), set(3, 0x56);         // dmin
  set(4 + 1, 41 | 2 << 6);            // scale 1 is 41, scale 5 has 2 on top
  set(4 + 4 + 1, 7 | 3 << 6);         // minimum 1 is 7, minimum 5 has 3 on top
  set(4 + 8 + 1, 9 | 10 << 4);        // the rest of both
  set(16 + 2 * 32 + 6, 5 | 11 << 4);  // element 6 of group 4 is 5, of group 5 is 11
  constexpr int64_t kK = 2 * kSuperSize;
  std::vector<std::byte> panel(static_cast<size_t>(BlockPanelBytes(BlockFormat::kInt4K, kK)));
  ASSERT_EQ(panel.size(), 2 * (8 * 256 + 320));

  PutQ4K(panel.data(), kK, 1, 3, block.data());

  const auto at = [&](size_t i) { return static_cast<int>(panel[i]); };
  const size_t numbers = 16 * 256 + 320;
  EXPECT_EQ(at(numbers + 6), 0x34);
  EXPECT_EQ(at(numbers + 32 + 6), 0x78);
  EXPECT_EQ(at(numbers + 64 + 1 * 32 + 3), 41);
  EXPECT_EQ(at(numbers + 64 + 1 * 32 + 16 + 3), 7);
  EXPECT_EQ(at(numbers + 64 + 5 * 32 + 3), 2 * 16 + 9);
  EXPECT_EQ(at(numbers + 64 + 5 * 32 + 16 + 3), 3 * 16 + 10);
  // Element 6 is the third high nibble of the first eight elements.
  EXPECT_EQ(at((8 + 4) * 256 + 3 * 4 + 2), 5 << 4);
  EXPECT_EQ(at((8 + 5) * 256 + 3 * 4 + 2), 11 << 4);
}

TEST(BlockFormats, Q4KTakesWholeSuperBlocksOnly) {
  EXPECT_TRUE(FitsBlocks(BlockFormat::kInt4K, 512));
  EXPECT_FALSE(FitsBlocks(BlockFormat::kInt4K, 288));
  EXPECT_TRUE(FitsBlocks(BlockFormat::kInt8, 1));
  EXPECT_THROW(BlockPanelBytes(BlockFormat::kInt4K, 288), Error);
}

double SquaredError(const BlockGroup& group, const float* values) {
  double sum = 0;
  for (int i = 0; i < kGroupSize; ++i) {
    const double e = double{F16ToFloat(group.scale)} * group.q[i] - values[i];
    sum += e * e;
  }
  return sum;
}

TEST(QuantizeGroup, Int8IsWithinHalfAStepOfEveryValue) {
  std::mt19937 rng(3);
  for (int round = 0; round < 500; ++round) {
    float values[kGroupSize];
    // From far below the range of f16 scales to near their limit.
    const float size = std::ldexp(1.0f, round % 40 - 20);
    for (float& v : values) v = std::normal_distribution<float>(0, size)(rng);
    const BlockGroup group = QuantizeGroup(BlockFormat::kInt8, values);
    const double step = F16ToFloat(group.scale);
    for (int i = 0; i < kGroupSize; ++i) {
      EXPECT_LE(std::abs(step * group.q[i] - values[i]), step * 0.5001) << round;
      EXPECT_GE(group.q[i], -127);
    }
  }
}

TEST(QuantizeGroup, Int4FitsBetterThanTheRoundingOfTheLargestAlone) {
  std::mt19937 rng(4);
  double searched = 0;
  double plain = 0;
  double power = 0;
  for (int round = 0; round < 2000; ++round) {
    float values[kGroupSize];
    for (float& v : values) {
      v = std::normal_distribution<float>(0, 0.02f)(rng);
      power += double{v} * v;
    }
    searched += SquaredError(QuantizeGroup(BlockFormat::kInt4, values), values);
    const float* extreme = std::max_element(
        values, values + kGroupSize, [](float a, float b) { return std::abs(a) < std::abs(b); });
    BlockGroup simple{.scale = FloatToF16(*extreme / -8)};
    for (int i = 0; i < kGroupSize; ++i) {
      const float q = std::nearbyint(values[i] / F16ToFloat(simple.scale));
      simple.q[i] = static_cast<int8_t>(std::clamp(q, -8.0f, 7.0f));
    }
    plain += SquaredError(simple, values);
  }
  // Measured for normal values, root mean square: 8.1 % against 8.6 %.
  EXPECT_LT(searched, 0.9 * plain);
  EXPECT_LT(std::sqrt(searched / power), 0.085);
}

TEST(QuantizeGroup, Int6IsWithinAStepOfEveryValueAndNearerOnTheWhole) {
  std::mt19937 rng(5);
  double squared = 0;
  double power = 0;
  for (int round = 0; round < 2000; ++round) {
    float values[kGroupSize];
    for (float& v : values) v = std::normal_distribution<float>(0, 0.02f)(rng);
    const BlockGroup group = QuantizeGroup(BlockFormat::kInt6, values);
    const double step = std::abs(F16ToFloat(group.scale));
    for (int i = 0; i < kGroupSize; ++i) {
      // Half a step; at the ends of the range the best scale may clip slightly more.
      EXPECT_LE(std::abs(F16ToFloat(group.scale) * static_cast<float>(group.q[i]) - values[i]),
                1.2 * step);
      power += double{values[i]} * values[i];
    }
    squared += SquaredError(group, values);
  }
  // Measured for normal values, root mean square: 1.99 %; a scale from the largest value alone
  // gives 2.13 %.
  EXPECT_LT(std::sqrt(squared / power), 0.0205);
}

TEST(QuantizeGroup, ZerosStayZeroAndWhatIsNotFiniteIsMarked) {
  for (const BlockFormat format : kGroupFormats) {
    float values[kGroupSize] = {};
    const BlockGroup zero = QuantizeGroup(format, values);
    EXPECT_EQ(zero.scale, 0);
    EXPECT_EQ(std::count(zero.q, zero.q + kGroupSize, 0), kGroupSize);

    for (const float bad : {NAN, INFINITY, -INFINITY, 1e30f}) {
      values[5] = bad;
      EXPECT_FALSE(std::isfinite(F16ToFloat(QuantizeGroup(format, values).scale))) << bad;
    }
  }
}

TEST(QuantizeGroup, OneHugeValueKeepsItsOwnPlace) {
  for (const BlockFormat format : kGroupFormats) {
    float values[kGroupSize] = {};
    for (float& v : values) v = 1e-4f;
    values[17] = -3.0f;
    const BlockGroup group = QuantizeGroup(format, values);
    const float scale = F16ToFloat(group.scale);
    EXPECT_NEAR(scale * static_cast<float>(group.q[17]), -3.0f, 0.003f);
    EXPECT_EQ(group.q[16], 0);
  }
}

}  // namespace
}  // namespace tandem::engine
