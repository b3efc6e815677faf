#include "engine/ops/row_mix.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tests/engine/ops/ops_test_support.h"

namespace tandem::engine {
namespace {

using RowMixTest = TableTest;
INSTANTIATE_TEST_SUITE_P(Tables, RowMixTest, testing::ValuesIn(AllTables()), TableName);

constexpr int64_t kMixRows = 5, kMixCols = 37;

Matrix MixOutput(std::vector<float>& values) {
  const auto cols = static_cast<int64_t>(values.size()) / kMixRows;
  return {values.data(), DType::kF32, kMixRows, cols, cols};
}

TEST_P(RowMixTest, AMixAddsEachStreamWithItsRowsWeight) {
  constexpr int64_t kWeightCols = 4, kFirst = 1;
  const std::vector<float> a = RandomFloats(kMixRows * kMixCols, 1);
  const std::vector<float> b = RandomFloats(kMixRows * kMixCols, 2);
  const std::vector<float> weights = RandomFloats(kMixRows * kWeightCols, 3);
  const std::array<const float*, 2> streams = {a.data(), b.data()};
  std::vector<float> y(a.size());
  TestOps ops(table(), 2);

  MixRows(ops, streams, weights.data(), kWeightCols, kFirst, 0.5f, MixOutput(y));

  for (int64_t i = 0; i < kMixRows * kMixCols; ++i) {
    const float* w = weights.data() + i / kMixCols * kWeightCols + kFirst;
    EXPECT_NEAR(y[i], (w[0] + 0.5f) * a[i] + (w[1] + 0.5f) * b[i], 1e-5f);
  }
}

TEST_P(RowMixTest, MatchedRowsHaveTheOthersMagnitudeAndTheirOwnDirection) {
  const std::vector<float> x = RandomFloats(kMixRows * kMixCols, 4);
  const std::vector<float> like = RandomFloats(kMixRows * kMixCols, 5);
  std::vector<float> y(x.size());
  TestOps ops(table(), 2);

  MatchMagnitude(ops, x.data(), like.data(), 1e-5f, MixOutput(y));

  for (int64_t row = 0; row < kMixRows; ++row) {
    const float* from = x.data() + row * kMixCols;
    const float* got = y.data() + row * kMixCols;
    const float* model = like.data() + row * kMixCols;
    const double wanted = RowDot(model, model, kMixCols);
    EXPECT_NEAR(RowDot(got, got, kMixCols), wanted, 1e-5 * wanted);
    for (int64_t c = 1; c < kMixCols; ++c) EXPECT_NEAR(got[c] * from[0], got[0] * from[c], 1e-4);
  }
}

TEST_P(RowMixTest, ARowBelowTheLeastMagnitudeIsNotBlownUp) {
  std::vector<float> x(kMixRows * kMixCols, 1e-6f), like(x.size(), 2.0f), y(x.size());
  TestOps ops(table());

  MatchMagnitude(ops, x.data(), like.data(), 1e-4f, MixOutput(y));

  EXPECT_NEAR(y[0], 1e-6f * 2.0f / 1e-2f, 1e-9f);
}

TEST_P(RowMixTest, ACutLeavesTheShareOfTheNormalDistribution) {
  constexpr int64_t kWide = 4000;
  const std::vector<float> x = RandomFloats(kMixRows * kWide, 6);
  std::vector<float> y(x.size());
  TestOps ops(table(), 2);

  AboveCut(ops, x.data(), 1.6448536f, MixOutput(y));

  const auto zeros = std::count(y.begin(), y.end(), 0.0f);
  EXPECT_NEAR(static_cast<double>(zeros) / static_cast<double>(y.size()), 0.95, 0.01);
  const size_t largest =
      static_cast<size_t>(std::max_element(x.begin(), x.begin() + kWide) - x.begin());
  const float cut = CutOf(SpreadOf(x.data(), kWide), 1.6448536f);
  EXPECT_FLOAT_EQ(y[largest], x[largest] - cut);
}

TEST_P(RowMixTest, ARowOfEqualNumbersBecomesZero) {
  const std::vector<float> x(kMixRows * kMixCols, 3.25f);
  std::vector<float> y(x.size(), 1.0f);
  TestOps ops(table());

  AboveCut(ops, x.data(), 1.0f, MixOutput(y));

  EXPECT_EQ(y, std::vector<float>(x.size(), 0.0f));
}

TEST_P(RowMixTest, ExpertsAreScaledByTheirNumberAndKeepTheirIds) {
  const std::vector<float> routing = {2, 0, 0.75f, 0.25f, 1, 2, 0.5f, 0.5f};  // 2 rows of 2 slots
  const std::vector<float> scales = {10, 100, 1000};
  std::vector<float> y(routing.size());
  TestOps ops(table());

  ScaleExperts(ops, routing.data(), scales.data(), {y.data(), DType::kF32, 2, 4, 4});

  EXPECT_EQ(y, (std::vector<float>{2, 0, 750, 2.5f, 1, 2, 50, 500}));
}

TEST_P(RowMixTest, ARowIsTheSameAloneAndAmongOthers) {
  const std::vector<float> x = RandomFloats(kMixRows * kMixCols, 7);
  const std::vector<float> like = RandomFloats(kMixRows * kMixCols, 8);
  std::vector<float> cut(x.size()), matched(x.size()), alone(kMixCols);
  TestOps ops(table(), 3);
  AboveCut(ops, x.data(), 0.3f, MixOutput(cut));
  MatchMagnitude(ops, x.data(), like.data(), 1e-5f, MixOutput(matched));

  for (int64_t first = 0; first < kMixRows * kMixCols; first += kMixCols) {
    const Matrix one{alone.data(), DType::kF32, 1, kMixCols, kMixCols};
    AboveCut(ops, x.data() + first, 0.3f, one);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), cut.begin() + first));
    MatchMagnitude(ops, x.data() + first, like.data() + first, 1e-5f, one);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), matched.begin() + first));
  }
}

TEST_P(RowMixTest, ATokenBeyondTheTableHasRow0) {
  constexpr int64_t kTableRows = 3, kTableCols = 5;
  const TestWeight embedding(DType::kF32, kTableRows, kTableCols, 9);
  const std::vector<TokenId> tokens = {1, 3, 9};
  std::vector<float> y(tokens.size() * kTableCols);
  TestOps ops(table());

  GatherRows(ops, embedding.matrix(), tokens, y.data(), kTableCols);

  for (int64_t c = 0; c < kTableCols; ++c) {
    EXPECT_EQ(y[static_cast<size_t>(c)], embedding.At(1, c));
    EXPECT_EQ(y[static_cast<size_t>(kTableCols + c)], embedding.At(0, c));
    EXPECT_EQ(y[static_cast<size_t>(2 * kTableCols + c)], embedding.At(0, c));
  }
}

}  // namespace
}  // namespace tandem::engine
