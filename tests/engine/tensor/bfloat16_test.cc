#include "engine/tensor/bfloat16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace tandem::engine {
namespace {

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(Bf16, EveryValueSurvivesTheWayToFloatAndBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto value = static_cast<Bf16>(bits);
    const float wide = Bf16ToFloat(value);
    if (std::isnan(wide)) continue;

    ASSERT_EQ(FloatToBf16(wide), value) << std::hex << bits;
  }
}

TEST(Bf16, TiesGoToTheEvenNeighbour) {
  EXPECT_EQ(FloatToBf16(FromBits(0x3f808000)), 0x3f80);  // below an odd number: down
  EXPECT_EQ(FloatToBf16(FromBits(0x3f818000)), 0x3f82);  // above an odd number: up
  EXPECT_EQ(FloatToBf16(FromBits(0xbf808000)), 0xbf80);
  EXPECT_EQ(FloatToBf16(FromBits(0xbf818000)), 0xbf82);
}

TEST(Bf16, JustBesideATieGoesToTheNearer) {
  EXPECT_EQ(FloatToBf16(FromBits(0x3f807fff)), 0x3f80);
  EXPECT_EQ(FloatToBf16(FromBits(0x3f808001)), 0x3f81);
  EXPECT_EQ(FloatToBf16(FromBits(0x3f817fff)), 0x3f81);
  EXPECT_EQ(FloatToBf16(FromBits(0x3f818001)), 0x3f82);
}

TEST(Bf16, RoundsToTheNearestOfItsNeighboursEverywhere) {
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    const float value = FromBits(bits);
    const float up = FromBits((bits & 0xffff0000u) + 0x10000u);
    if (!std::isfinite(value) || !std::isfinite(up)) continue;
    const float down = FromBits(bits & 0xffff0000u);

    const double to_down = std::abs(static_cast<double>(value) - down);
    const double to_up = std::abs(static_cast<double>(up) - value);
    const float rounded = Bf16ToFloat(FloatToBf16(value));

    if (to_down != to_up) {
      ASSERT_EQ(rounded, to_down < to_up ? down : up) << std::hex << bits;
    } else {
      ASSERT_EQ(FloatToBf16(value) & 1, 0) << std::hex << bits;
    }
  }
}

TEST(Bf16, OverflowBecomesInfinityAndTheLargestFiniteStays) {
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(FloatToBf16(-std::numeric_limits<float>::max()), 0xff80);
  EXPECT_EQ(FloatToBf16(FromBits(0x7f7f7fff)), 0x7f7f);
  EXPECT_EQ(FloatToBf16(FromBits(0x7f7f8000)), 0x7f80);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::infinity()), 0x7f80);
}

TEST(Bf16, NaNStaysNaNEvenWhenItsPayloadLiesInTheLostBits) {
  for (const uint32_t bits : {0x7fc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    const float back = Bf16ToFloat(FloatToBf16(FromBits(bits)));

    EXPECT_TRUE(std::isnan(back)) << std::hex << bits;
    EXPECT_EQ(std::signbit(back), (bits >> 31) != 0) << std::hex << bits;
    EXPECT_NE(FloatToBf16(FromBits(bits)) & 0x0040, 0) << "not quiet: " << std::hex << bits;
  }
}

TEST(Bf16, SubnormalsAndSignedZeroesRoundLikeAllOthers) {
  EXPECT_EQ(FloatToBf16(0.0f), 0x0000);
  EXPECT_EQ(FloatToBf16(-0.0f), 0x8000);
  EXPECT_EQ(FloatToBf16(FromBits(0x00000001)), 0x0000);
  EXPECT_EQ(FloatToBf16(FromBits(0x00008000)), 0x0000);  // a tie with zero, which is even
  EXPECT_EQ(FloatToBf16(FromBits(0x00008001)), 0x0001);
  EXPECT_EQ(FloatToBf16(FromBits(0x007fffff)), 0x0080);  // up to a normal number
}

// The definition of IEEE half precision, in f64 arithmetic.
double HalfByDefinition(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(F16, EveryFiniteValueWidensExactly) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    if (((bits >> 10) & 0x1f) == 0x1f) continue;
    const auto half = static_cast<uint16_t>(bits);

    ASSERT_EQ(static_cast<double>(F16ToFloat(half)), HalfByDefinition(half)) << std::hex << bits;
    ASSERT_EQ(std::signbit(F16ToFloat(half)), (bits & 0x8000) != 0) << std::hex << bits;
  }
}

TEST(F16, InfinitiesAndNaNsKeepTheirKind) {
  EXPECT_EQ(F16ToFloat(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(F16ToFloat(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(F16ToFloat(0x7c01)));
  EXPECT_TRUE(std::isnan(F16ToFloat(0xffff)));
}

TEST(Float16, EveryHalfComesBackFromItsFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const bool nan = (bits & 0x7fff) > 0x7c00;
    EXPECT_EQ(FloatToF16(F16ToFloat(half)), nan ? (bits & 0x8000) | 0x7e00 : bits) << bits;
  }
}

TEST(Float16, RoundsToNearestAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = F16ToFloat(static_cast<uint16_t>(bits));
    const float high = F16ToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;  // exact: a half has 11 bits
    EXPECT_EQ(FloatToF16(middle), bits + bits % 2);
    EXPECT_EQ(FloatToF16(std::nextafter(middle, low)), bits);
    EXPECT_EQ(FloatToF16(std::nextafter(middle, high)), bits + 1);
    EXPECT_EQ(FloatToF16(-middle), (bits + bits % 2) | 0x8000);
  }
  EXPECT_EQ(FloatToF16(65519.99f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToF16(-1e30f), 0xfc00);
}

}  // namespace
}  // namespace tandem::engine
