#include "training/ops/relu_save.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "engine/ops/parallel.h"
#include "tests/training/ops/gradient_check.h"
#include "training/ops/pointwise.h"

namespace tandem::training {
namespace {

using engine::DType;

// Compares bits; all NaN are equal.
bool Same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();
constexpr float kMax = std::numeric_limits<float>::max();

// Sizes around bytes, words and tasks; rows times columns, with some odd numbers.
struct Shape {
  int64_t rows, cols;
  int64_t elements() const { return rows * cols; }
};
constexpr Shape kShapes[] = {{1, 1},     {1, 7},     {1, 8},     {3, 3},    {1, 63},
                             {1, 64},    {5, 13},    {8, 125},   {37, 77},  {1, 32767},
                             {2, 16384}, {32771, 1}, {701, 100}, {333, 211}};

Floats Awkward(int64_t n, uint64_t seed) {
  Floats x = RandomFloats(n, seed);
  const float special[] = {0.0f,  -0.0f,  kNan,      -kNan, kInf, -kInf,
                           kTiny, -kTiny, kTiny * 8, kMax,  -kMax};
  for (size_t i = 0; i < x.size(); i += 3) x[i] = special[i / 3 % std::size(special)];
  return x;
}

// y = relu(x) in a compute dtype, as the forward pass computes it.
struct Result {
  Result(engine::OpsContext& ops, const Floats& x, const Shape& shape, DType dtype)
      : bytes(static_cast<size_t>(shape.rows * engine::RowStride(dtype, shape.cols)) *
              engine::DTypeBytes(dtype)),
        y{bytes.data(), dtype, shape.rows, shape.cols, engine::RowStride(dtype, shape.cols)} {
    engine::Activate(ops, x.data(), shape.cols, engine::Activation::kRelu, y);
  }
  AlignedBuffer bytes;
  engine::Matrix y;
};

TEST(ReluMask, BitsSayWhichElementsArePositive) {
  OnEveryTable([](engine::OpsContext& ops) {
    for (const Shape& shape : kShapes) {
      const int64_t n = shape.elements();
      const Floats x = Awkward(n, 1);
      std::vector<uint8_t> mask(static_cast<size_t>(ReluMaskBytes(n)) + 1, 0xa5);
      ReluMask(ops, x.data(), n, mask.data());
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ((mask[i / 8] >> (i % 8)) & 1, x[i] > 0 ? 1 : 0) << n << " at " << i;
      }
      for (int64_t i = n; i < ReluMaskBytes(n) * 8; ++i) {
        ASSERT_EQ((mask[i / 8] >> (i % 8)) & 1, 0);
      }
      EXPECT_EQ(mask.back(), 0xa5) << "beyond the mask";
    }
  });
}

TEST(ReluMask, GradientsAreThoseFromTheInputBitForBit) {
  OnEveryTable([](engine::OpsContext& ops) {
    for (const Shape& shape : kShapes) {
      const int64_t n = shape.elements();
      const Floats x = Awkward(n, 2);
      Floats dy = Awkward(n, 3);
      std::rotate(dy.begin(), dy.begin() + n / 2, dy.end());  // pairs special values with others
      const Floats before = RandomFloats(n, 4);
      Floats plain = before;
      ActivateBackward(ops, x.data(), engine::Activation::kRelu, dy.data(), n, plain.data());

      Floats masked = before;
      std::vector<uint8_t> mask(static_cast<size_t>(ReluMaskBytes(n)));
      ReluMask(ops, x.data(), n, mask.data());
      ReluMaskBackward(ops, mask.data(), dy.data(), n, masked.data());
      for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(Same(plain[i], masked[i])) << n << " at " << i;

      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        Floats packed_gradient = before;
        const Result result(ops, x, shape, dtype);
        PackedRelu packed;
        PackRelu(ops, x.data(), result.y, mask.data(), &packed);
        PackedReluBackward(ops, mask.data(), packed, dtype, dy.data(), n, packed_gradient.data());
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_TRUE(Same(plain[i], packed_gradient[i])) << n << " at " << i << " of " << x[i];
        }
      }
    }
  });
}

TEST(PackedRelu, GivesBackEveryBit) {
  OnEveryTable([](engine::OpsContext& ops) {
    PackedRelu packed;  // reused: its old contents must not matter
    for (const Shape& shape : kShapes) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const Floats x = Awkward(shape.elements(), 5);
        Result result(ops, x, shape, dtype);
        std::vector<std::byte> before(result.bytes.data(),
                                      result.bytes.data() + result.bytes.size());
        std::vector<uint8_t> mask(static_cast<size_t>(ReluMaskBytes(shape.elements())));
        PackRelu(ops, x.data(), result.y, mask.data(), &packed);
        std::memset(result.bytes.data(), 0x5a, result.bytes.size());
        UnpackRelu(ops, mask.data(), packed, result.y);
        EXPECT_EQ(std::memcmp(result.bytes.data(), before.data(), before.size()), 0)
            << shape.rows << " x " << shape.cols;
      }
    }
  });
}

// The numbers of the 32K example: 56 MiB for 32,768 x 14,336 elements, 1 bit in 32.
TEST(ReluMask, TakesOneBitPerElement) {
  EXPECT_EQ(ReluMaskBytes(32768 * int64_t{14336}), 58720256);
  EXPECT_EQ(58720256, 56 << 20);
  EXPECT_EQ(32 * ReluMaskBytes(32768 * int64_t{14336}), 32768 * int64_t{14336} * 4);
  EXPECT_EQ(ReluMaskBytes(1), 1);
  EXPECT_EQ(ReluMaskBytes(9), 2);
  // Eight such sequences have more elements than 32 bits can count.
  EXPECT_EQ(ReluMaskBytes(8 * 32768 * int64_t{14336}), 8 * int64_t{58720256});
}

TEST(PackedRelu, HoldsTheMarkedValuesAlone) {
  OnEveryTable([](engine::OpsContext& ops) {
    const Shape shape{100, 77};
    Floats x = RandomFloats(shape.elements(), 6);
    const auto positive = std::count_if(x.begin(), x.end(), [](float value) { return value > 0; });
    const Result result(ops, x, shape, DType::kBF16);
    std::vector<uint8_t> mask(static_cast<size_t>(ReluMaskBytes(shape.elements())));
    PackedRelu packed;
    PackRelu(ops, x.data(), result.y, mask.data(), &packed);
    EXPECT_EQ(packed.count, positive);
    // It reserves a sixteenth more, so that it does not grow at every step.
    EXPECT_LE(packed.values.size(), static_cast<size_t>(positive) * 2 * 17 / 16);
  });
}

}  // namespace
}  // namespace tandem::training
