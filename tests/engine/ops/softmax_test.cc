#include "engine/ops/softmax.h"

#include <cmath>
#include <limits>

#include "tests/engine/ops/ops_test_support.h"

namespace tandem::engine {
namespace {

using LogSumExpTest = TableTest;
INSTANTIATE_TEST_SUITE_P(Tables, LogSumExpTest, testing::ValuesIn(AllTables()), TableName);

TEST_P(LogSumExpTest, AgreesWithDouble) {
  for (const int64_t vocab : {1, 5, 16, 1000, 4095, 4096, 4097, 8192, 20001}) {
    const int64_t rows = 3;
    const int64_t ld = vocab + 2;
    std::vector<float> logits = RandomFloats(rows * ld, 1);
    for (float& v : logits) v = 5 * v + 20;
    std::vector<float> lse(rows);
    TestOps ops(table(), 2);

    LogSumExp(ops, logits.data(), rows, vocab, ld, lse.data());

    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < vocab; ++i)
        sum += std::exp(double{logits[static_cast<size_t>(r * ld + i)]});
      // The reference adds 4,096 terms one by one: up to 4096 half-ulps of the sum.
      EXPECT_NEAR(lse[static_cast<size_t>(r)], std::log(sum), 1e-4) << vocab;
    }
  }
}

TEST_P(LogSumExpTest, RowHasTheSameBitsAloneAndWithAnyThreads) {
  const int64_t rows = 7;
  const int64_t vocab = 9001;
  const std::vector<float> logits = RandomFloats(rows * vocab, 2);
  std::vector<float> whole(rows);
  TestOps one(table(), 1);
  LogSumExp(one, logits.data(), rows, vocab, vocab, whole.data());
  for (const int threads : {1, 2, 3}) {
    TestOps ops(table(), threads);
    for (int64_t r = 0; r < rows; ++r) {
      float alone = 0;
      LogSumExp(ops, logits.data() + r * vocab, 1, vocab, vocab, &alone);
      EXPECT_EQ(alone, whole[static_cast<size_t>(r)]);
    }
  }
}

TEST_P(LogSumExpTest, MaskedLogitsCountAsZero) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> logits(10000, -inf);
  logits[5000] = 3.0f;
  float lse = 0;
  TestOps ops(table());
  LogSumExp(ops, logits.data(), 1, 10000, 10000, &lse);
  EXPECT_EQ(lse, 3.0f);

  logits[5000] = -inf;
  LogSumExp(ops, logits.data(), 1, 10000, 10000, &lse);
  EXPECT_EQ(lse, -inf);

  logits[9000] = std::numeric_limits<float>::quiet_NaN();
  logits[1] = 1.0f;
  LogSumExp(ops, logits.data(), 1, 10000, 10000, &lse);
  EXPECT_TRUE(std::isnan(lse));
}

}  // namespace
}  // namespace tandem::engine
