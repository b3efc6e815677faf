#include "engine/ops/lora.h"

#include <cmath>

#include "tests/engine/ops/ops_test_support.h"

namespace tandem::engine {
namespace {

using LoraTest = TableTest;
INSTANTIATE_TEST_SUITE_P(Tables, LoraTest, testing::ValuesIn(AllTables()), TableName);

struct Pair {
  Pair(DType dtype, int64_t n, int64_t k, int64_t rank, float scale, uint32_t seed)
      : a(dtype, rank, k, seed), b(dtype, n, rank, seed + 1), lora{a.matrix(), b.matrix(), scale} {}
  TestWeight a, b;
  LoraMatrices lora;
};

TEST_P(LoraTest, AddsTheLowRankProductToWhatIsThere) {
  for (const DType dtype : kComputeTypes) {
    for (const int64_t rank : {1, 4, 7, 16, 33}) {
      const int64_t m = 9, n = 50, k = 37;
      const TestMatrix x(dtype, m, k, RandomFloats(m * k, 1));
      const Pair pair(dtype, n, k, rank, 0.3f, 2);
      const std::vector<float> before = RandomFloats(m * n, 4);
      std::vector<float> y = before;
      TestMatrix hidden(dtype, m, rank);
      TestOps ops(table(), 2);
      const LoraRows all{&pair.lora, 0, m};

      AddLora(ops, x, {&all, 1}, y.data(), n, &hidden.matrix());

      for (int64_t row = 0; row < m; ++row) {
        std::vector<double> h(static_cast<size_t>(rank));
        for (int64_t r = 0; r < rank; ++r) {
          double sum = 0;
          for (int64_t i = 0; i < k; ++i) sum += double{x.At(row, i)} * pair.a.At(r, i);
          sum *= double{0.3f};
          // bf16 stores h to 2^-9; the sum may round to either side of a tie.
          const double step = dtype == DType::kF32 ? 1e-5 : 0x1p-8;
          ASSERT_NEAR(hidden.At(row, r), sum, step * std::abs(sum) + 1e-4) << rank;
          h[static_cast<size_t>(r)] = hidden.At(row, r);
        }
        for (int64_t col = 0; col < n; ++col) {
          double sum = before[static_cast<size_t>(row * n + col)];
          for (int64_t r = 0; r < rank; ++r) {
            sum += h[static_cast<size_t>(r)] * pair.b.At(col, r);
          }
          ASSERT_NEAR(y[static_cast<size_t>(row * n + col)], sum, 1e-3) << rank;
        }
      }
    }
  }
}

TEST_P(LoraTest, RowHasTheSameBitsAloneAmidOtherAdaptersAndWithAnyThreads) {
  const int64_t m = 200, n = 117, k = 301;
  for (const DType dtype : kComputeTypes) {
    const TestMatrix x(dtype, m, k, RandomFloats(m * k, 1));
    const Pair first(dtype, n, k, 16, 2, 2), second(dtype, n, k, 5, 0.7f, 8);
    const std::vector<float> before = RandomFloats(m * n, 4);
    // Rows [0, 3) and [90, 95) have no adapter.
    const std::vector<LoraRows> parts = {
        {&first.lora, 3, 1}, {&second.lora, 4, 86}, {&first.lora, 95, 105}};
    std::vector<float> alone = before;
    for (const LoraRows& part : parts) {
      for (int64_t row = part.first_row; row < part.first_row + part.n_rows; ++row) {
        TestOps ops(table(), 1);
        const LoraRows one{part.lora, row, 1};
        AddLora(ops, x, {&one, 1}, alone.data(), n, nullptr);
      }
    }
    for (const int threads : {1, 2, 3}) {
      std::vector<float> y = before;
      TestOps ops(table(), threads);
      AddLora(ops, x, parts, y.data(), n, nullptr);
      EXPECT_TRUE(SameBits(alone, y)) << DTypeName(dtype) << " threads " << threads;
      EXPECT_TRUE(std::equal(y.begin(), y.begin() + 3 * n, before.begin()));
      EXPECT_TRUE(std::equal(y.begin() + 90 * n, y.begin() + 95 * n, before.begin() + 90 * n));
    }
  }
}

}  // namespace
}  // namespace tandem::engine
