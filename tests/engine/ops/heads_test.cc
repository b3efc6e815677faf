#include "engine/ops/heads.h"

#include <cmath>

#include "tests/engine/ops/ops_test_support.h"

namespace tandem::engine {
namespace {

using HeadsTest = TableTest;
INSTANTIATE_TEST_SUITE_P(Tables, HeadsTest, testing::ValuesIn(AllTables()), TableName);

Matrix DenseF32(std::vector<float>& values, int64_t rows) {
  const auto cols = static_cast<int64_t>(values.size()) / rows;
  return {values.data(), DType::kF32, rows, cols, cols};
}

TEST_P(HeadsTest, JoinedSlicesOfAllHeadsAreTheWhole) {
  constexpr int64_t kRows = 5, kHeads = 3, kDim = 7, kFirst = 4;
  const std::vector<float> x = RandomFloats(kRows * kHeads * kDim, 1);
  std::vector<float> low(kRows * kHeads * kFirst), high(kRows * kHeads * (kDim - kFirst));
  std::vector<float> whole(x.size());
  TestOps ops(table(), 2);

  SliceHeads(ops, x.data(), kHeads * kDim, kHeads, kDim, 0, DenseF32(low, kRows));
  SliceHeads(ops, x.data(), kHeads * kDim, kHeads, kDim, kFirst, DenseF32(high, kRows));
  JoinHeads(ops, low.data(), kFirst, high.data(), kDim - kFirst, kHeads, kHeads,
            DenseF32(whole, kRows));

  EXPECT_EQ(whole, x);
  EXPECT_EQ(low[4], x[7]) << "the second head's slice begins with the head";
}

TEST_P(HeadsTest, AHeadOfOneRowIsSharedByAllHeadsOfThatRowAlone) {
  const std::vector<float> a = {1, 2, 3, 4};  // 2 rows of 2 heads of 1
  const std::vector<float> b = {10, 20};      // 2 rows of one head
  std::vector<float> y(8);
  TestOps ops(table());

  JoinHeads(ops, a.data(), 1, b.data(), 1, 1, 2, DenseF32(y, 2));

  EXPECT_EQ(y, (std::vector<float>{1, 10, 2, 10, 3, 20, 4, 20}));
}

TEST_P(HeadsTest, PlainRmsNormGivesEveryRunAMeanSquareOfOne) {
  constexpr int64_t kRows = 3, kLength = 6;
  const std::vector<float> x = RandomFloats(kRows * 2 * kLength, 2);
  std::vector<float> y(x.size());
  TestOps ops(table());

  PlainRmsNorm(ops, x.data(), kLength, 0, DenseF32(y, kRows), nullptr);

  for (size_t run = 0; run < y.size(); run += kLength) {
    double squares = 0;
    for (size_t i = run; i < run + kLength; ++i) {
      squares += double{y[i]} * y[i];
      EXPECT_EQ(std::signbit(y[i]), std::signbit(x[i]));
    }
    EXPECT_NEAR(squares / kLength, 1, 1e-5);
  }
}

}  // namespace
}  // namespace tandem::engine
