#include "engine/ops/rows.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "tests/engine/ops/ops_test_support.h"

namespace tandem::engine {
namespace {

using RowsTest = TableTest;
INSTANTIATE_TEST_SUITE_P(Tables, RowsTest, testing::ValuesIn(AllTables()), TableName);

constexpr int64_t kCols[] = {1, 2, 7, 15, 16, 17, 48, 63, 200, 2304};

// A few dozen f32 roundings; bf16 has one more, of 2^-8 relative.
double Tolerance(DType dtype, double value, double scale) {
  const double f32 = 3e-6 * scale;
  return dtype == DType::kF32 ? f32 : f32 + std::abs(value) * 0x1p-8;
}

void ExpectNear(const TestMatrix& y, const std::function<double(int64_t, int64_t)>& expected,
                double scale, std::string_view what) {
  for (int64_t r = 0; r < y.matrix().rows; ++r) {
    for (int64_t c = 0; c < y.matrix().cols; ++c) {
      const double want = expected(r, c);
      ASSERT_NEAR(y.At(r, c), want, Tolerance(y.matrix().dtype, want, scale + std::abs(want)))
          << what << " row " << r << " column " << c << " of " << y.matrix().cols;
    }
    if (y.matrix().stride > y.matrix().cols) {
      ASSERT_EQ(y.At(r, y.matrix().cols), 0.0f) << what;
    }
  }
}

TEST_P(RowsTest, RmsNormAgreesWithDouble) {
  for (const DType dtype : kComputeTypes) {
    for (const int64_t cols : kCols) {
      const int64_t rows = 5;
      const std::vector<float> x = RandomFloats(rows * cols, 1);
      const std::vector<float> gamma = RandomFloats(cols, 2);
      std::vector<float> rstd(rows);
      TestMatrix y(dtype, rows, cols);
      TestOps ops(table(), 2);

      RmsNorm(ops, x.data(), cols, gamma.data(), 1e-5f, y.matrix(), rstd.data());

      const auto scale = [&](int64_t r) {
        double squares = 0;
        for (int64_t c = 0; c < cols; ++c)
          squares += std::pow(x[static_cast<size_t>(r * cols + c)], 2);
        return 1 / std::sqrt(squares / static_cast<double>(cols) + 1e-5f);
      };
      for (int64_t r = 0; r < rows; ++r) {
        EXPECT_NEAR(rstd[static_cast<size_t>(r)], scale(r), 2e-6 * scale(r));
      }
      ExpectNear(
          y,
          [&](int64_t r, int64_t c) {
            return x[static_cast<size_t>(r * cols + c)] * scale(r) * gamma[static_cast<size_t>(c)];
          },
          0, "RmsNorm");
    }
  }
}

TEST_P(RowsTest, RmsNormOfRunsIsThatOfRowsOfTheirLength) {
  for (const int64_t length : {2, 12, 16, 64}) {
    const int64_t rows = 5, heads = 3;
    const std::vector<float> x = RandomFloats(rows * heads * length, 1);
    const std::vector<float> gamma = RandomFloats(length, 2);
    std::vector<float> rstd(static_cast<size_t>(rows * heads)), rstd_of_rows(rstd);
    TestMatrix heads_apart(DType::kF32, rows * heads, length);
    TestMatrix y(DType::kF32, rows, heads * length);
    TestOps ops(table(), 2);

    RmsNorm(ops, x.data(), length, gamma.data(), 1e-5f, heads_apart.matrix(), rstd_of_rows.data());
    RmsNormRuns(ops, x.data(), gamma.data(), length, 1e-5f, y.matrix(), rstd.data());

    EXPECT_EQ(rstd, rstd_of_rows);
    for (int64_t i = 0; i < rows * heads * length; ++i) {
      ASSERT_EQ(y.At(i / (heads * length), i % (heads * length)),
                heads_apart.At(i / length, i % length));
    }
  }
}

TEST_P(RowsTest, ScaleAndSoftCapAgreeWithDouble) {
  for (const int64_t n : {1, 15, 16, 17, 100, 40000}) {
    std::vector<float> x = RandomFloats(n, 3);
    for (float& v : x) v *= 20;
    std::vector<float> scaled(x.size()), capped = x;
    TestOps ops(table(), 2);

    ScaleRows(ops, x.data(), 6.5f, n, scaled.data());
    SoftCap(ops, 30, n, capped.data());

    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(scaled[i], x[i] * 6.5f);
      const double want = 30 * std::tanh(static_cast<double>(x[i]) / 30);
      ASSERT_NEAR(capped[i], want, 1e-6 * (1 + std::abs(want)));
    }
  }
}

TEST_P(RowsTest, LayerNormAgreesWithDouble) {
  for (const DType dtype : kComputeTypes) {
    for (const int64_t cols : kCols) {
      const int64_t rows = 5;
      std::vector<float> x = RandomFloats(rows * cols, 3);
      for (float& v : x) v += 2.0f;
      const std::vector<float> gamma = RandomFloats(cols, 4);
      const std::vector<float> beta = RandomFloats(cols, 5);
      std::vector<float> stats(2 * rows);
      TestMatrix y(dtype, rows, cols);
      TestOps ops(table(), 2);

      LayerNorm(ops, x.data(), cols, gamma.data(), beta.data(), 1e-5f, y.matrix(), stats.data());

      for (int64_t r = 0; r < rows; ++r) {
        double mean = 0;
        double variance = 0;
        for (int64_t c = 0; c < cols; ++c) mean += x[static_cast<size_t>(r * cols + c)];
        mean /= static_cast<double>(cols);
        for (int64_t c = 0; c < cols; ++c) {
          variance += std::pow(x[static_cast<size_t>(r * cols + c)] - mean, 2);
        }
        const double rstd = 1 / std::sqrt(variance / static_cast<double>(cols) + 1e-5);
        EXPECT_NEAR(stats[static_cast<size_t>(2 * r)], mean, 1e-6 * 3);
        if (cols == 1) continue;  // x - mean is rounding noise
        EXPECT_NEAR(stats[static_cast<size_t>(2 * r + 1)], rstd, 1e-4 * rstd);
        for (int64_t c = 0; c < cols; ++c) {
          const double want =
              (x[static_cast<size_t>(r * cols + c)] - mean) * rstd * gamma[static_cast<size_t>(c)] +
              beta[static_cast<size_t>(c)];
          ASSERT_NEAR(y.At(r, c), want, Tolerance(dtype, want, 4 * (1 + rstd)))
              << "row " << r << " column " << c << " of " << cols;
        }
        if (y.matrix().stride > cols) {
          ASSERT_EQ(y.At(r, cols), 0.0f);
        }
      }
    }
  }
}

TEST_P(RowsTest, RopeRotatesHalvesByPosition) {
  for (const DType dtype : kComputeTypes) {
    for (const int64_t head_dim : {2, 8, 12, 16, 64, 80, 128}) {
      const int64_t heads = 3;
      const std::vector<int32_t> positions = {0, 1, 9, 4, 4};
      const auto rows = static_cast<int64_t>(positions.size());
      std::vector<double> frequencies;
      for (int64_t i = 0; i < head_dim / 2; ++i) {
        frequencies.push_back(
            std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
      }
      const RopeTable rope(frequencies, 10);
      const int64_t cols = heads * head_dim;
      const std::vector<float> x = RandomFloats(rows * cols, 6);
      TestMatrix y(dtype, rows, cols);
      TestOps ops(table(), 2);

      Rope(ops, x.data(), cols, positions, rope, y.matrix());

      ExpectNear(
          y,
          [&](int64_t r, int64_t c) {
            const int64_t half = head_dim / 2;
            const int64_t i = c % head_dim % half;
            const float* head = x.data() + r * cols + c / head_dim * head_dim;
            const double angle =
                positions[static_cast<size_t>(r)] * frequencies[static_cast<size_t>(i)];
            return c % head_dim < half
                       ? head[i] * std::cos(angle) - head[half + i] * std::sin(angle)
                       : head[half + i] * std::cos(angle) + head[i] * std::sin(angle);
          },
          1, "Rope");
    }
  }
}

// Rotary dimensions up to `rotary_dim` of each head, in either order of pairs.
TEST_P(RowsTest, PartialAndInterleavedRopeRotateTheirPairsAndCopyTheRest) {
  struct Form {
    int64_t head_dim, rotary_dim;
    bool interleaved;
  };
  constexpr Form kForms[] = {{8, 4, false},  {12, 6, true},   {80, 20, false},
                             {80, 32, true}, {64, 64, true},  {96, 72, false},
                             {16, 2, true},  {128, 34, true}, {128, 126, false}};
  for (const DType dtype : kComputeTypes) {
    for (const Form& form : kForms) {
      const int64_t heads = 3, half = form.rotary_dim / 2, cols = heads * form.head_dim;
      const std::vector<int32_t> positions = {0, 1, 9, 4, 4};
      const auto rows = static_cast<int64_t>(positions.size());
      std::vector<double> frequencies;
      for (int64_t i = 0; i < half; ++i) frequencies.push_back(std::pow(0.7, i));
      const RopeTable rope(frequencies, 10, 1.25, {form.head_dim, form.interleaved});
      EXPECT_EQ(rope.rotary_dim(), form.rotary_dim);
      EXPECT_EQ(rope.head_dim(), form.head_dim);
      const std::vector<float> x = RandomFloats(rows * cols, 6);
      TestMatrix y(dtype, rows, cols);
      TestOps ops(table(), 2);

      Rope(ops, x.data(), cols, positions, rope, y.matrix());

      ExpectNear(
          y,
          [&](int64_t r, int64_t c) {
            const int64_t at = c % form.head_dim;
            const float* head = x.data() + r * cols + c / form.head_dim * form.head_dim;
            if (at >= form.rotary_dim) return static_cast<double>(head[at]);
            const int64_t i = form.interleaved ? at / 2 : at % half;
            const bool is_low = form.interleaved ? at % 2 == 0 : at < half;
            const double low = head[form.interleaved ? 2 * i : i];
            const double high = head[form.interleaved ? 2 * i + 1 : half + i];
            const double angle =
                positions[static_cast<size_t>(r)] * frequencies[static_cast<size_t>(i)];
            const double cos = 1.25 * std::cos(angle), sin = 1.25 * std::sin(angle);
            return is_low ? low * cos - high * sin : high * cos + low * sin;
          },
          1, "Rope");
    }
  }
}

TEST(RopeTableTest, RowsAreTheSameHoweverTheyAreAskedFor) {
  const std::vector<double> frequencies = {1, 0.25, 0.01};
  const RopeTable at_once(frequencies, 1000, 1.5);
  const RopeTable grown(frequencies, 1000, 1.5);
  const std::vector<int32_t> last = {999};
  const float* expected = at_once.RowsOf(last);

  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int32_t p = 0; p < 1000; p += 7) {
        const std::vector<int32_t> positions = {p, p / 2};
        const float* rows = grown.RowsOf(positions);
        if (std::memcmp(rows + 6 * p, expected + 6 * p, 6 * sizeof(float)) != 0) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(wrong.load(), 0);
  EXPECT_FLOAT_EQ(expected[6 * 999], static_cast<float>(1.5 * std::cos(999.0)));
  EXPECT_FLOAT_EQ(expected[6 * 999 + 3], static_cast<float>(1.5 * std::sin(999.0)));
  const std::vector<int32_t> beyond = {1000};
  EXPECT_THROW(at_once.RowsOf(beyond), Error);
}

TEST(RopeTableTest, RowsGrowByWholePeriods) {
  const std::vector<double> frequencies = {1, 0.25};
  const RopeTable table(frequencies, 100, 1.5, {.growth = 0.2, .growth_period = 16});
  const std::vector<int32_t> last = {99};
  const float* rows = table.RowsOf(last);

  for (int64_t p = 0; p < 100; ++p) {
    const double amplitude = 1.5 * (1 + 0.2 * std::log(1 + static_cast<double>(p / 16)));
    EXPECT_FLOAT_EQ(rows[4 * p], static_cast<float>(amplitude * std::cos(p))) << p;
    EXPECT_FLOAT_EQ(rows[4 * p + 3], static_cast<float>(amplitude * std::sin(0.25 * p))) << p;
  }
}

double ApplyDouble(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2));
    case Activation::kRelu2:
      return std::pow(std::max(x, 0.0), 2);
    case Activation::kClampedSwiglu:
      break;
  }
  return 0;
}

TEST_P(RowsTest, ActivationsAgreeWithDouble) {
  for (const DType dtype : kComputeTypes) {
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh, Activation::kRelu,
                                        Activation::kGelu, Activation::kRelu2}) {
      for (const int64_t cols : kCols) {
        const int64_t rows = 3;
        std::vector<float> x = RandomFloats(rows * cols, 7);
        for (float& v : x) v *= 4;
        const std::vector<float> up = RandomFloats(rows * cols, 8);
        TestMatrix plain(dtype, rows, cols);
        TestMatrix gated(dtype, rows, cols);
        TestOps ops(table(), 2);

        Activate(ops, x.data(), cols, activation, plain.matrix());
        GatedActivation(ops, x.data(), up.data(), cols, activation, gated.matrix());

        const auto value = [&](int64_t r, int64_t c) {
          return ApplyDouble(activation, x[static_cast<size_t>(r * cols + c)]);
        };
        ExpectNear(plain, value, 0.1, "Activate");
        ExpectNear(
            gated,
            [&](int64_t r, int64_t c) {
              return value(r, c) * up[static_cast<size_t>(r * cols + c)];
            },
            0.1, "GatedActivation");
      }
    }
  }
}

TEST_P(RowsTest, ClampedSwigluAgreesWithDoubleOnBothSidesOfItsLimits) {
  for (const DType dtype : kComputeTypes) {
    for (const int64_t cols : kCols) {
      const int64_t rows = 3;
      std::vector<float> gate = RandomFloats(rows * cols, 17);
      std::vector<float> up = RandomFloats(rows * cols, 18);
      for (float& v : gate) v *= 12;
      for (float& v : up) v *= 12;
      TestMatrix y(dtype, rows, cols);
      TestOps ops(table(), 2);

      GatedActivation(ops, gate.data(), up.data(), cols, Activation::kClampedSwiglu, y.matrix());

      ExpectNear(
          y,
          [&](int64_t r, int64_t c) {
            const auto at = static_cast<size_t>(r * cols + c);
            const double g = std::min(7.0, double{gate[at]});
            const double u = std::clamp(double{up[at]}, -7.0, 7.0);
            return (u + 1) * g / (1 + std::exp(-1.702 * g));
          },
          1, "ClampedSwiglu");
    }
  }
}

TEST_P(RowsTest, ClampedSwigluKeepsNanAndStaysFiniteForInfinities) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> gate = {inf, 1e30f, 1.0f, nan, 1.0f};
  const std::vector<float> up = {inf, -inf, -1e30f, 1.0f, nan};
  TestMatrix y(DType::kF32, 1, 5);
  TestOps ops(table());
  GatedActivation(ops, gate.data(), up.data(), 5, Activation::kClampedSwiglu, y.matrix());
  EXPECT_NEAR(y.At(0, 0), 8 * 7 / (1 + std::exp(-7 * 1.702)), 1e-4);
  EXPECT_NEAR(y.At(0, 1), -6 * 7 / (1 + std::exp(-7 * 1.702)), 1e-4);
  EXPECT_NEAR(y.At(0, 2), -6 / (1 + std::exp(-1.702)), 1e-5);
  EXPECT_TRUE(std::isnan(y.At(0, 3)));
  EXPECT_TRUE(std::isnan(y.At(0, 4)));
  EXPECT_THROW(Activate(ops, gate.data(), 5, Activation::kClampedSwiglu, y.matrix()), Error);
}

TEST_P(RowsTest, ActivationsOfExtremesAreLimits) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {1e30f, -1e30f, -100.0f, 100.0f, 0.0f, inf};
  TestMatrix y(DType::kF32, 1, 6);
  TestOps ops(table());
  for (const Activation activation :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu}) {
    Activate(ops, x.data(), 6, activation, y.matrix());
    EXPECT_EQ(y.At(0, 0), 1e30f);
    EXPECT_EQ(std::abs(y.At(0, 1)), 0.0f);
    EXPECT_NEAR(y.At(0, 2), 0.0f, 1e-30);
    EXPECT_EQ(y.At(0, 3), 100.0f);
    EXPECT_EQ(y.At(0, 4), 0.0f);
    EXPECT_EQ(y.At(0, 5), inf);
  }
}

// The tail of the exact GELU keeps its digits where 1 + erf would cancel.
TEST_P(RowsTest, ExactGeluKeepsItsDigitsInTheTail) {
  std::vector<float> x;
  for (int i = 0; i < 400; ++i) x.push_back(-6.0f + 0.02f * static_cast<float>(i));
  TestMatrix y(DType::kF32, 1, 400);
  TestOps ops(table());

  Activate(ops, x.data(), 400, Activation::kGelu, y.matrix());

  for (int64_t c = 0; c < 400; ++c) {
    const double want = ApplyDouble(Activation::kGelu, x[static_cast<size_t>(c)]);
    ASSERT_NEAR(y.At(0, c), want, 4e-6 * std::abs(want) + 1e-12) << x[static_cast<size_t>(c)];
  }
}

TEST_P(RowsTest, MultiplyAndClampAreExactAndSigmoidAgreesWithDouble) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t n : {1, 15, 16, 17, 100, 40000}) {
    std::vector<float> a = RandomFloats(n, 3);
    for (float& v : a) v *= 20;
    const std::vector<float> b = RandomFloats(n, 4);
    std::vector<float> product(a.size()), clamped(a.size()), sigmoid(a.size());
    TestOps ops(table(), 2);

    MultiplyRows(ops, a.data(), b.data(), n, product.data());
    ClampRows(ops, a.data(), 8.0f, n, clamped.data());
    SigmoidRows(ops, a.data(), n, sigmoid.data());

    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(product[i], a[i] * b[i]);
      ASSERT_EQ(clamped[i], std::clamp(a[i], -8.0f, 8.0f));
      const double want = 1 / (1 + std::exp(-static_cast<double>(a[i])));
      ASSERT_NEAR(sigmoid[i], want, 3e-6 * want + 1e-36) << a[i];
    }
  }
  TestOps ops(table());
  float clamped = 0;
  ClampRows(ops, &nan, 8.0f, 1, &clamped);
  EXPECT_TRUE(std::isnan(clamped));
}

TEST_P(RowsTest, LayerNormWithoutScaleOrBiasIsThatWithOnesAndZeros) {
  for (const int64_t cols : {5, 16, 100}) {
    const int64_t rows = 3;
    const std::vector<float> x = RandomFloats(rows * cols, 3);
    const std::vector<float> gamma = RandomFloats(cols, 4);
    const std::vector<float> ones(static_cast<size_t>(cols), 1), zeros(ones.size(), 0);
    TestMatrix bare(DType::kF32, rows, cols), plain(DType::kF32, rows, cols);
    TestMatrix scaled(DType::kF32, rows, cols), with_zeros(DType::kF32, rows, cols);
    TestOps ops(table());

    LayerNorm(ops, x.data(), cols, nullptr, nullptr, 1e-5f, bare.matrix(), nullptr);
    LayerNorm(ops, x.data(), cols, ones.data(), zeros.data(), 1e-5f, plain.matrix(), nullptr);
    LayerNorm(ops, x.data(), cols, gamma.data(), nullptr, 1e-5f, scaled.matrix(), nullptr);
    LayerNorm(ops, x.data(), cols, gamma.data(), zeros.data(), 1e-5f, with_zeros.matrix(), nullptr);

    EXPECT_EQ(bare, plain) << cols;
    EXPECT_EQ(scaled, with_zeros) << cols;
  }
}

TEST_P(RowsTest, AddAndRoundAreExact) {
  for (const int64_t cols : kCols) {
    const int64_t rows = 9;
    const std::vector<float> a = RandomFloats(rows * cols, 9);
    const std::vector<float> b = RandomFloats(rows * cols, 10);
    std::vector<float> sum(a.size());
    TestOps ops(table(), 2);
    AddRows(ops, a.data(), b.data(), rows * cols, sum.data());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(sum[i], a[i] + b[i]);

    for (const DType dtype : kComputeTypes) {
      TestMatrix y(dtype, rows, cols);
      RoundRows(ops, a.data(), cols, y.matrix());
      EXPECT_EQ(y, TestMatrix(dtype, rows, cols, a)) << cols;
    }
  }
}

TEST_P(RowsTest, RoundingToBf16IsToNearestEvenWithNanKept) {
  std::vector<float> x = {1.0f,
                          1.00390625f,
                          1.01171875f,
                          std::bit_cast<float>(0x3f808001u),
                          std::bit_cast<float>(0x3f807fffu),
                          3.4e38f,
                          -3.4e38f,
                          0.0f,
                          -0.0f,
                          std::bit_cast<float>(0x00000001u),
                          std::bit_cast<float>(0x00018000u),
                          std::bit_cast<float>(0x7f800001u),
                          std::bit_cast<float>(0xffffffffu),
                          std::numeric_limits<float>::infinity()};
  x.resize(33, 2.7182817f);
  const auto cols = static_cast<int64_t>(x.size());
  TestMatrix y(DType::kBF16, 1, cols);
  TestOps ops(table());

  RoundRows(ops, x.data(), cols, y.matrix());

  for (int64_t c = 0; c < cols; ++c) {
    EXPECT_EQ(static_cast<const Bf16*>(y.matrix().data)[c], FloatToBf16(x[static_cast<size_t>(c)]))
        << c;
  }
}

// A row at 16 addresses, alone and inside a batch, gives equal bits.
TEST_P(RowsTest, ReductionsDependOnTheRowAlone) {
  for (const int64_t cols : {5, 16, 100, 771}) {
    const std::vector<float> row = RandomFloats(cols, 11);
    const std::vector<float> gamma = RandomFloats(cols, 12);
    const std::vector<float> beta = RandomFloats(cols, 13);
    std::vector<float> first_rms;
    std::vector<float> first_layer;
    for (int64_t offset = 0; offset < 16; ++offset) {
      const int64_t rows = 1 + offset % 3;
      std::vector<float> x = RandomFloats(offset + rows * cols, 14);
      std::copy(row.begin(), row.end(), x.end() - cols);
      std::vector<float> rms(static_cast<size_t>(offset + rows * cols));
      std::vector<float> layer(rms.size());
      TestOps ops(table(), 1 + static_cast<int>(offset % 3));

      RmsNorm(ops, x.data() + offset, cols, gamma.data(), 1e-6f,
              {rms.data() + offset, DType::kF32, rows, cols, cols}, nullptr);
      LayerNorm(ops, x.data() + offset, cols, gamma.data(), beta.data(), 1e-6f,
                {layer.data() + offset, DType::kF32, rows, cols, cols}, nullptr);

      const std::vector<float> this_rms(rms.end() - cols, rms.end());
      const std::vector<float> this_layer(layer.end() - cols, layer.end());
      if (offset == 0) {
        first_rms = this_rms;
        first_layer = this_layer;
      }
      EXPECT_TRUE(SameBits(first_rms, this_rms)) << cols << " at " << offset;
      EXPECT_TRUE(SameBits(first_layer, this_layer)) << cols << " at " << offset;
    }
  }
}

// Pointwise kernels process a value in a full vector or in a tail, with the same bits.
TEST_P(RowsTest, PointwiseValuesDoNotDependOnTheirLane) {
  const std::vector<float> x = RandomFloats(40, 15);
  for (const Activation activation :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu2}) {
    TestMatrix whole(DType::kF32, 1, 40);
    TestOps ops(table());
    Activate(ops, x.data(), 40, activation, whole.matrix());
    for (int64_t c = 0; c < 40; ++c) {
      TestMatrix alone(DType::kF32, 1, 1);
      Activate(ops, x.data() + c, 1, activation, alone.matrix());
      EXPECT_EQ(alone.At(0, 0), whole.At(0, c)) << c;
    }
  }
}

}  // namespace
}  // namespace tandem::engine
