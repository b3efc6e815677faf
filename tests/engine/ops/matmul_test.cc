#include "engine/ops/matmul.h"

#include <cmath>
#include <cstring>
#include <functional>

#include "engine/base/error.h"
#include "tests/engine/ops/ops_test_support.h"

namespace tandem::engine {
namespace {

using MatMulTest = TableTest;
INSTANTIATE_TEST_SUITE_P(Tables, MatMulTest, testing::ValuesIn(AllTables()), TableName);

// An f32 sum of n terms, in any order, is within n half-ulps of the sum of magnitudes.
struct Sum {
  double value = 0;
  double magnitude = 0;
  int64_t terms = 0;
  void Add(double x) {
    value += x;
    magnitude += std::abs(x);
    ++terms;
  }
  double Tolerance() const { return static_cast<double>(terms + 2) * 0x1p-24 * magnitude + 1e-30; }
};

struct Shape {
  int64_t m, n, k;
};

constexpr Shape kShapes[] = {
    {1, 1, 1},   {1, 17, 7},   {2, 16, 16},   {3, 15, 33},   {4, 48, 2},    {5, 47, 130},
    {7, 49, 64}, {8, 100, 31}, {9, 96, 32},   {15, 33, 300}, {16, 80, 513}, {17, 31, 1027},
    {33, 64, 5}, {64, 20, 40}, {130, 50, 61}, {1, 400, 600}, {600, 35, 12}};

TEST_P(MatMulTest, AgreesWithDoubleSums) {
  for (const DType dtype : kComputeTypes) {
    for (const Shape& s : kShapes) {
      const TestMatrix x(dtype, s.m, s.k, RandomFloats(s.m * s.k, 1));
      const TestWeight w(dtype, s.n, s.k, 2);
      const std::vector<float> bias = RandomFloats(s.n, 3);
      std::vector<float> y(static_cast<size_t>(s.m * s.n));
      TestOps ops(table(), 2);

      MatMul(ops, x, w.matrix(), bias.data(), y.data(), s.n);

      for (int64_t m = 0; m < s.m; ++m) {
        for (int64_t n = 0; n < s.n; ++n) {
          Sum sum;
          for (int64_t k = 0; k < s.k; ++k) sum.Add(double{x.At(m, k)} * w.At(n, k));
          sum.Add(bias[static_cast<size_t>(n)]);
          ASSERT_NEAR(y[static_cast<size_t>(m * s.n + n)], sum.value, sum.Tolerance())
              << DTypeName(dtype) << " m " << m << " of " << s.m << " n " << n << " of " << s.n
              << " k " << s.k;
        }
      }
    }
  }
}

TEST_P(MatMulTest, RowHasTheSameBitsInEverySplitAndWithAnyThreads) {
  const Shape s{67, 117, 781};
  for (const DType dtype : kComputeTypes) {
    const TestMatrix x(dtype, s.m, s.k, RandomFloats(s.m * s.k, 4));
    const TestWeight w(dtype, s.n, s.k, 5);
    std::vector<float> whole(static_cast<size_t>(s.m * s.n));
    TestOps one(table(), 1);
    MatMul(one, x, w.matrix(), nullptr, whole.data(), s.n);

    for (const int threads : {1, 2, 3}) {
      TestOps ops(table(), threads);
      for (const int64_t rows : {1, 2, 3, 5, 8, 12, 16, 31, 67}) {
        std::vector<float> y(whole.size());
        for (int64_t m = 0; m < s.m; m += rows) {
          MatMul(ops, x.Rows(m, std::min(rows, s.m - m)), w.matrix(), nullptr, y.data() + m * s.n,
                 s.n);
        }
        EXPECT_TRUE(SameBits(whole, y))
            << DTypeName(dtype) << " rows " << rows << " threads " << threads;
      }
    }
  }
}

TEST_P(MatMulTest, WeightsInBlocksGiveEachRowTheSameBitsInEverySplitAndWithAnyThreads) {
  for (const BlockFormat block : kBlockFormats) {
    const Shape s{67, 117, Fitting(block, 781)};
    const TestMatrix x(DType::kBF16, s.m, s.k, RandomFloats(s.m * s.k, 4));
    const TestBlockWeight w(block, s.n, s.k, 5);
    const std::vector<float> bias = RandomFloats(s.n, 3);
    std::vector<float> whole(static_cast<size_t>(s.m * s.n));
    TestOps one(table(), 1);
    MatMul(one, x, w.matrix(), bias.data(), whole.data(), s.n);

    for (const int threads : {1, 2, 3}) {
      TestOps ops(table(), threads);
      for (const int64_t rows : {1, 2, 3, 5, 8, 9, 16, 31, 67}) {
        std::vector<float> y(whole.size());
        for (int64_t m = 0; m < s.m; m += rows) {
          MatMul(ops, x.Rows(m, std::min(rows, s.m - m)), w.matrix(), bias.data(),
                 y.data() + m * s.n, s.n);
        }
        EXPECT_TRUE(SameBits(whole, y))
            << BlockFormatName(block) << " rows " << rows << " threads " << threads;
      }
    }
    // On other tables too: integers and the order of the rest are the same everywhere.
    std::vector<float> y(whole.size());
    TestOps reference(*RunnableKernelTables().front());
    MatMul(reference, x, w.matrix(), bias.data(), y.data(), s.n);
    EXPECT_TRUE(SameBits(whole, y)) << BlockFormatName(block);
  }
}

TEST_P(MatMulTest, WeightsInBlocksComeNearTheProductOfTheirValues) {
  for (const BlockFormat block : kBlockFormats) {
    for (Shape s : kShapes) {
      s.k = Fitting(block, s.k);
      const TestMatrix x(DType::kBF16, s.m, s.k, RandomFloats(s.m * s.k, 1));
      const TestBlockWeight w(block, s.n, s.k, 2);
      std::vector<float> y(static_cast<size_t>(s.m * s.n));
      TestOps ops(table(), 2);

      MatMul(ops, x, w.matrix(), nullptr, y.data(), s.n);

      // The rows of x are rounded: the error is at most half a 127th of a group's largest value,
      // here below 6.
      for (int64_t m = 0; m < s.m; ++m) {
        for (int64_t n = 0; n < s.n; ++n) {
          Sum sum;
          double weights = 0;
          for (int64_t k = 0; k < s.k; ++k) {
            sum.Add(double{x.At(m, k)} * w.At(n, k));
            weights += std::abs(double{w.At(n, k)});
          }
          ASSERT_NEAR(y[static_cast<size_t>(m * s.n + n)], sum.value,
                      sum.Tolerance() + weights * 6 / 254)
              << BlockFormatName(block) << " m " << m << " n " << n << " k " << s.k;
        }
      }
    }
  }
}

TEST_P(MatMulTest, InputGradThroughBlocksIsThatOfTheirValuesInBf16) {
  constexpr Shape kGradShapes[] = {{1, 1, 1},     {3, 17, 5},   {9, 33, 48},   {20, 530, 31},
                                   {33, 1040, 9}, {5, 64, 300}, {600, 18, 20}, {2, 40, 530}};
  for (const BlockFormat block : kBlockFormats) {
    for (Shape s : kGradShapes) {
      s.k = Fitting(block, s.k);
      const TestMatrix dy(DType::kBF16, s.m, s.n, RandomFloats(s.m * s.n, 8));
      const TestBlockWeight w(block, s.n, s.k, 9);
      const std::vector<float> before = RandomFloats(s.m * s.k, 10);
      for (const bool accumulate : {false, true}) {
        std::vector<float> dx = before;
        TestOps ops(table(), 2);

        MatMulInputGrad(ops, dy, w.matrix(), dx.data(), s.k, accumulate);

        for (int64_t m = 0; m < s.m; ++m) {
          for (int64_t k = 0; k < s.k; ++k) {
            const auto at = static_cast<size_t>(m * s.k + k);
            Sum sum;
            if (accumulate) sum.Add(before[at]);
            for (int64_t n = 0; n < s.n; ++n) {
              sum.Add(double{dy.At(m, n)} * Bf16ToFloat(FloatToBf16(w.At(n, k))));
            }
            ASSERT_NEAR(dx[at], sum.value, sum.Tolerance())
                << BlockFormatName(block) << " m " << m << " k " << k << " shape " << s.m << " "
                << s.n << " " << s.k;
          }
        }
      }
    }
  }
}

// A task decodes exactly the panels of the bf16 weight, so all bits are equal.
TEST_P(MatMulTest, InputGradThroughBlocksHasTheBitsOfTheWeightWidenedToBf16) {
  for (const BlockFormat block : kBlockFormats) {
    const Shape s{37, 701, Fitting(block, 326)};
    const TestMatrix dy(DType::kBF16, s.m, s.n, RandomFloats(s.m * s.n, 11));
    const TestBlockWeight w(block, s.n, s.k, 12);
    std::vector<float> values(static_cast<size_t>(s.n * s.k));
    UnpackPanels(w.matrix(), values.data());
    AlignedBuffer panels(static_cast<size_t>(PanelBytes(DType::kBF16, s.n, s.k)));
    TestOps one(table(), 1);
    PackPanels(one,
               {.data = reinterpret_cast<const std::byte*>(values.data()),
                .dtype = DType::kF32,
                .shape = {s.n, s.k}},
               SourceLayout::kOutIn, s.n, s.k, DType::kBF16, panels.data());
    std::vector<float> widened(static_cast<size_t>(s.m * s.k));
    MatMulInputGrad(one, dy, {panels.data(), DType::kBF16, s.n, s.k}, widened.data(), s.k, false);

    for (const int64_t rows : {1, 13, 37}) {
      std::vector<float> dx(widened.size());
      TestOps ops(table(), 3);
      for (int64_t m = 0; m < s.m; m += rows) {
        MatMulInputGrad(ops, dy.Rows(m, std::min(rows, s.m - m)), w.matrix(), dx.data() + m * s.k,
                        s.k, false);
      }
      EXPECT_TRUE(SameBits(widened, dx)) << BlockFormatName(block) << " rows " << rows;
    }
  }
}

TEST_P(MatMulTest, WritesOnlyItsColumns) {
  const Shape s{19, 21, 10};
  for (const DType dtype : kComputeTypes) {
    const TestMatrix x(dtype, s.m, s.k, RandomFloats(s.m * s.k, 6));
    const TestWeight w(dtype, s.n, s.k, 7);
    const int64_t ldy = s.n + 3;
    std::vector<float> y(static_cast<size_t>(s.m * ldy), 77.0f);
    TestOps ops(table());

    MatMul(ops, x, w.matrix(), nullptr, y.data(), ldy);

    for (int64_t m = 0; m < s.m; ++m) {
      for (int64_t n = s.n; n < ldy; ++n) EXPECT_EQ(y[static_cast<size_t>(m * ldy + n)], 77.0f);
    }
  }
}

TEST_P(MatMulTest, InputGradAgreesWithDoubleSums) {
  constexpr Shape kGradShapes[] = {{1, 1, 1},     {3, 17, 5},   {9, 33, 48},  {20, 530, 31},
                                   {33, 1040, 9}, {5, 64, 300}, {600, 18, 20}};
  for (const DType dtype : kComputeTypes) {
    for (const Shape& s : kGradShapes) {
      const TestMatrix dy(dtype, s.m, s.n, RandomFloats(s.m * s.n, 8));
      const TestWeight w(dtype, s.n, s.k, 9);
      const std::vector<float> before = RandomFloats(s.m * s.k, 10);
      for (const bool accumulate : {false, true}) {
        std::vector<float> dx = before;
        TestOps ops(table(), 2);

        MatMulInputGrad(ops, dy, w.matrix(), dx.data(), s.k, accumulate);

        for (int64_t m = 0; m < s.m; ++m) {
          for (int64_t k = 0; k < s.k; ++k) {
            const auto at = static_cast<size_t>(m * s.k + k);
            Sum sum;
            if (accumulate) sum.Add(before[at]);
            for (int64_t n = 0; n < s.n; ++n) sum.Add(double{dy.At(m, n)} * w.At(n, k));
            ASSERT_NEAR(dx[at], sum.value, sum.Tolerance())
                << DTypeName(dtype) << " m " << m << " k " << k << " shape " << s.m << " " << s.n
                << " " << s.k;
          }
        }
      }
    }
  }
}

TEST_P(MatMulTest, InputGradOfARowDependsOnThatRowAlone) {
  const Shape s{37, 700, 70};
  for (const DType dtype : kComputeTypes) {
    const TestMatrix dy(dtype, s.m, s.n, RandomFloats(s.m * s.n, 11));
    const TestWeight w(dtype, s.n, s.k, 12);
    std::vector<float> whole(static_cast<size_t>(s.m * s.k));
    TestOps one(table(), 1);
    MatMulInputGrad(one, dy, w.matrix(), whole.data(), s.k, false);

    for (const int64_t rows : {1, 4, 13}) {
      std::vector<float> dx(whole.size());
      TestOps ops(table(), 3);
      for (int64_t m = 0; m < s.m; m += rows) {
        MatMulInputGrad(ops, dy.Rows(m, std::min(rows, s.m - m)), w.matrix(), dx.data() + m * s.k,
                        s.k, false);
      }
      EXPECT_TRUE(SameBits(whole, dx)) << DTypeName(dtype) << " rows " << rows;
    }
  }
}

TEST_P(MatMulTest, WeightGradAgreesWithDoubleSums) {
  constexpr Shape kGradShapes[] = {{1, 1, 1},    {2, 17, 5},   {7, 33, 48},   {31, 260, 31},
                                   {64, 40, 19}, {513, 9, 35}, {1100, 18, 20}};
  for (const DType dtype : kComputeTypes) {
    for (const Shape& s : kGradShapes) {
      const TestMatrix dy(dtype, s.m, s.n, RandomFloats(s.m * s.n, 13));
      const TestMatrix x(dtype, s.m, s.k, RandomFloats(s.m * s.k, 14));
      const std::vector<float> before = RandomFloats(s.n * s.k, 15);
      for (const bool accumulate : {false, true}) {
        std::vector<float> dw = before;
        TestOps ops(table(), 2);

        MatMulWeightGrad(ops, dy, x, dw.data(), accumulate);

        for (int64_t n = 0; n < s.n; ++n) {
          for (int64_t k = 0; k < s.k; ++k) {
            const auto at = static_cast<size_t>(n * s.k + k);
            Sum sum;
            if (accumulate) sum.Add(before[at]);
            for (int64_t m = 0; m < s.m; ++m) sum.Add(double{dy.At(m, n)} * x.At(m, k));
            ASSERT_NEAR(dw[at], sum.value, sum.Tolerance())
                << DTypeName(dtype) << " n " << n << " k " << k << " shape " << s.m << " " << s.n
                << " " << s.k;
          }
        }
      }
    }
  }
}

TEST_P(MatMulTest, WeightGradOfABatchSplitAt1024RowsHasTheSameBits) {
  const Shape s{2100, 70, 37};
  for (const DType dtype : kComputeTypes) {
    const TestMatrix dy(dtype, s.m, s.n, RandomFloats(s.m * s.n, 16));
    const TestMatrix x(dtype, s.m, s.k, RandomFloats(s.m * s.k, 17));
    std::vector<float> whole(static_cast<size_t>(s.n * s.k));
    TestOps one(table(), 1);
    MatMulWeightGrad(one, dy, x, whole.data(), false);

    std::vector<float> split(whole.size());
    TestOps ops(table(), 3);
    for (int64_t m = 0; m < s.m; m += 1024) {
      const int64_t rows = std::min<int64_t>(1024, s.m - m);
      MatMulWeightGrad(ops, dy.Rows(m, rows), x.Rows(m, rows), split.data(), m > 0);
    }

    EXPECT_TRUE(SameBits(whole, split)) << DTypeName(dtype);
  }
}

TEST_P(MatMulTest, WeightGradOfNoRowsIsZero) {
  std::vector<float> dw = {1, 2, 3, 4};
  const TestMatrix none(DType::kF32, 0, 2);
  TestOps ops(table());

  MatMulWeightGrad(ops, none, none, dw.data(), true);
  EXPECT_EQ(dw, (std::vector<float>{1, 2, 3, 4}));

  MatMulWeightGrad(ops, none, none, dw.data(), false);
  EXPECT_EQ(dw, (std::vector<float>{0, 0, 0, 0}));
}

// One source of each dtype.
struct Source {
  DType dtype;
  std::vector<std::byte> bytes;
  std::vector<float> values;  // exact
};

Source MakeSource(DType dtype, int64_t elements) {
  Source source{dtype, std::vector<std::byte>(static_cast<size_t>(elements) * DTypeBytes(dtype)),
                RandomFloats(elements, 18)};
  for (size_t i = 0; i < source.values.size(); ++i) {
    std::byte* to = source.bytes.data() + i * DTypeBytes(dtype);
    if (dtype == DType::kBF16) {
      const Bf16 bits = FloatToBf16(source.values[i]);
      source.values[i] = Bf16ToFloat(bits);
      std::memcpy(to, &bits, sizeof(bits));
    } else if (dtype == DType::kF64) {
      const double wide = source.values[i];
      std::memcpy(to, &wide, sizeof(wide));
    } else {
      std::memcpy(to, &source.values[i], sizeof(float));
    }
  }
  return source;
}

TEST(Panels, HoldTheSourceRoundedOnceInEitherLayout) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {16, 2}, {37, 19}, {50, 301}}) {
    for (const DType from : {DType::kF32, DType::kBF16, DType::kF64}) {
      for (const DType to : kComputeTypes) {
        for (const SourceLayout layout : {SourceLayout::kOutIn, SourceLayout::kInOut}) {
          const Source source = MakeSource(from, n * k);
          AlignedBuffer panels(static_cast<size_t>(PanelBytes(to, n, k)));
          std::memset(panels.data(), 0xff, panels.size());
          TestOps ops(Kernels(), 2);

          PackPanels(ops, {.data = source.bytes.data(), .dtype = from, .shape = {n * k}}, layout, n,
                     k, to, panels.data());

          std::vector<float> rows(static_cast<size_t>(n * k));
          UnpackPanels({panels.data(), to, n, k}, rows.data());
          for (int64_t i = 0; i < n; ++i) {
            for (int64_t j = 0; j < k; ++j) {
              float value = source.values[static_cast<size_t>(
                  layout == SourceLayout::kOutIn ? i * k + j : j * n + i)];
              if (to == DType::kBF16) value = Bf16ToFloat(FloatToBf16(value));
              ASSERT_EQ(rows[static_cast<size_t>(i * k + j)], value) << i << " " << j;
            }
          }
        }
      }
    }
  }
}

TEST(Panels, ArePaddedWithZeros) {
  const Source source = MakeSource(DType::kF32, 3 * 5);
  AlignedBuffer panels(static_cast<size_t>(PanelBytes(DType::kBF16, 3, 5)));
  std::memset(panels.data(), 0xff, panels.size());
  TestOps ops(Kernels());

  PackPanels(ops, {.data = source.bytes.data(), .dtype = DType::kF32, .shape = {3, 5}},
             SourceLayout::kOutIn, 3, 5, DType::kBF16, panels.data());

  const Bf16* at = panels.as<Bf16>();
  int zeros = 0;
  for (size_t i = 0; i < panels.size() / sizeof(Bf16); ++i) zeros += at[i] == 0 ? 1 : 0;
  EXPECT_EQ(zeros, 16 * 6 - 15);
}

TEST(Panels, InBlocksHoldTheRoundedGroupsInEitherLayoutAndReportTheError) {
  for (const BlockFormat block : kRoundedFormats) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {16, 32}, {37, 300}, {50, 513}}) {
      for (const SourceLayout layout : {SourceLayout::kOutIn, SourceLayout::kInOut}) {
        const Source source = MakeSource(DType::kBF16, n * k);
        AlignedBuffer panels(static_cast<size_t>(PanelBytes(block, n, k)));
        std::memset(panels.data(), 0xff, panels.size());
        TestOps ops(Kernels(), 2);

        const BlockError error = PackBlockPanels(
            ops, {.data = source.bytes.data(), .dtype = DType::kBF16, .shape = {n * k}}, layout, n,
            k, block, panels.data());

        std::vector<float> rows(static_cast<size_t>(n * k));
        UnpackPanels({panels.data(), DType::kBF16, n, k, block}, rows.data());
        double squared_error = 0;
        double squared = 0;
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t first = 0; first < k; first += kGroupSize) {
            float values[kGroupSize] = {};
            for (int64_t j = first; j < std::min(k, first + kGroupSize); ++j) {
              values[j - first] = source.values[static_cast<size_t>(
                  layout == SourceLayout::kOutIn ? i * k + j : j * n + i)];
            }
            const BlockGroup group = QuantizeGroup(block, values);
            for (int64_t j = first; j < std::min(k, first + kGroupSize); ++j) {
              const float got = rows[static_cast<size_t>(i * k + j)];
              ASSERT_EQ(got, F16ToFloat(group.scale) * static_cast<float>(group.q[j - first]));
              squared_error += std::pow(double{got} - values[j - first], 2);
              squared += std::pow(double{values[j - first]}, 2);
            }
          }
        }
        EXPECT_NEAR(error.Relative(), std::sqrt(squared_error / squared), 1e-5);
      }
    }
  }
}

TEST(Panels, InBlocksAreZeroBeyondTheWeight) {
  const Source source = MakeSource(DType::kF32, 3 * 5);
  for (const BlockFormat block : kRoundedFormats) {
    AlignedBuffer panels(static_cast<size_t>(PanelBytes(block, 3, 5)));
    std::memset(panels.data(), 0xff, panels.size());
    TestOps ops(Kernels());

    PackBlockPanels(ops, {.data = source.bytes.data(), .dtype = DType::kF32, .shape = {3, 5}},
                    SourceLayout::kOutIn, 3, 5, block, panels.data());

    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const BlockGroup group = GetGroup(block, panels.data(), 5, 0, lane);
      EXPECT_EQ(group.scale == 0, lane >= 3);
      for (int64_t i = lane < 3 ? 5 : 0; i < kGroupSize; ++i) EXPECT_EQ(group.q[i], 0);
    }
    EXPECT_EQ(panels.data()[panels.size() - 1], std::byte{0});
  }
}

TEST(Panels, OfQ4KHoldTheValuesOfTheirSuperBlocksWithAnyThreads) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 256}, {37, 768}}) {
    const std::vector<std::byte> blocks = RandomQ4K(n, k, 3);
    AlignedBuffer panels(static_cast<size_t>(PanelBytes(BlockFormat::kInt4K, n, k)));
    std::memset(panels.data(), 0xff, panels.size());
    TestOps ops(Kernels(), 3);

    const auto row_data = [&](int64_t row) {
      return blocks.data() + row * (k / kSuperSize) * kQ4KBytes;
    };
    const BlockError error = PackQ4K(ops, row_data, n, k, panels.data());

    EXPECT_EQ(error.Relative(), 0);
    std::vector<float> rows(static_cast<size_t>(n * k));
    UnpackPanels({panels.data(), DType::kBF16, n, k, BlockFormat::kInt4K}, rows.data());
    for (int64_t i = 0; i < n * k; ++i) {
      const std::byte* block = blocks.data() + i / kSuperSize * kQ4KBytes;
      const int64_t at = i % kSuperSize;
      const int64_t g = at / kGroupSize;
      const auto byte = [&](int64_t j) { return static_cast<int>(block[j]); };
      uint16_t d[2];
      std::memcpy(d, block, sizeof(d));
      const int scale = g < 4 ? byte(4 + g) & 63 : (byte(8 + g) & 15) | byte(g) >> 6 << 4;
      const int minimum = g < 4 ? byte(8 + g) & 63 : byte(8 + g) >> 4 | byte(4 + g) >> 6 << 4;
      const int both = byte(16 + at / 64 * 32 + at % 32);
      const int q = at % 64 < 32 ? both & 15 : both >> 4;
      const float least = F16ToFloat(d[1]) * static_cast<float>(minimum);
      ASSERT_EQ(rows[static_cast<size_t>(i)],
                F16ToFloat(d[0]) * static_cast<float>(scale) * static_cast<float>(q) - least)
          << i;
    }
    // Rows beyond the weight are all zero bits, scales included.
    const std::byte* last =
        panels.data() + (n - 1) / kLanes * BlockPanelBytes(BlockFormat::kInt4K, k);
    for (int64_t lane = n % kLanes; lane < kLanes; ++lane) {
      const ScaledGroup group = GetScaledGroup(last, k, 0, lane);
      EXPECT_EQ(group.scale, 0);
      EXPECT_EQ(group.minimum, 0);
    }
  }
}

TEST(Panels, OfQ4KReportNumbersThatAreNotFinite) {
  TestOps ops(Kernels());
  AlignedBuffer panels(static_cast<size_t>(PanelBytes(BlockFormat::kInt4K, 3, 512)));
  for (const size_t at : {size_t{0}, size_t{5 * kQ4KBytes + 2}}) {  // the first d, the last dmin
    for (const float bad : {NAN, INFINITY}) {
      std::vector<std::byte> blocks = RandomQ4K(3, 512, 5);
      const uint16_t bits = FloatToF16(bad);
      std::memcpy(blocks.data() + at, &bits, sizeof(bits));
      const auto row_data = [&](int64_t row) { return blocks.data() + row * 2 * kQ4KBytes; };
      EXPECT_FALSE(std::isfinite(PackQ4K(ops, row_data, 3, 512, panels.data()).Relative()));
    }
  }
}

TEST(Panels, OfQ4KRefuseRowsThatAreNotWholeSuperBlocks) {
  TestOps ops(Kernels());
  const auto row_data = [](int64_t) -> const std::byte* { return nullptr; };
  try {
    PackQ4K(ops, row_data, 2, 288, nullptr);
    FAIL() << "was packed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("288"), std::string::npos);
  }
}

TEST(Panels, OfIntegersAreRefused) {
  const std::vector<std::byte> source(64);
  std::vector<std::byte> panels(64 * 16);
  TestOps ops(Kernels());
  EXPECT_THROW(PackPanels(ops, {.data = source.data(), .dtype = DType::kI8, .shape = {8, 8}},
                          SourceLayout::kOutIn, 8, 8, DType::kF32, panels.data()),
               Error);
}

TEST(GatherRows, ReadsRowsOfBlocks) {
  for (const BlockFormat block : kBlockFormats) {
    const int64_t k = Fitting(block, 75);
    const TestBlockWeight table(block, 40, k, 19);
    const std::vector<TokenId> ids = {0, 39, 17, 17, 16};
    const int64_t stride = k + 1;
    std::vector<float> out(ids.size() * static_cast<size_t>(stride), -1.0f);
    TestOps ops(Kernels(), 2);

    GatherRows(ops, table.matrix(), ids, out.data(), stride);

    for (size_t i = 0; i < ids.size(); ++i) {
      const float* row = out.data() + i * static_cast<size_t>(stride);
      for (int64_t c = 0; c < k; ++c) EXPECT_EQ(row[c], table.At(ids[i], c));
      EXPECT_EQ(row[k], -1.0f);
    }
  }
}

TEST(GatherRows, ReadsRowsOfThePanels) {
  for (const DType dtype : kComputeTypes) {
    const TestWeight table(dtype, 40, 11, 19);
    const std::vector<TokenId> ids = {0, 39, 17, 17, 16};
    std::vector<float> out(ids.size() * 12, -1.0f);
    TestOps ops(Kernels(), 2);

    GatherRows(ops, table.matrix(), ids, out.data(), 12);

    for (size_t i = 0; i < ids.size(); ++i) {
      for (int64_t c = 0; c < 11; ++c) {
        EXPECT_EQ(out[i * 12 + static_cast<size_t>(c)], table.At(ids[i], c));
      }
      EXPECT_EQ(out[i * 12 + 11], -1.0f);
    }
  }
}

}  // namespace
}  // namespace tandem::engine
