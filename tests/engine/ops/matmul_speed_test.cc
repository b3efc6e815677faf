#include "engine/ops/matmul_speed.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"

namespace tandem::engine {
namespace {

TEST(MatMulSpeed, IsANumberForEveryFormat) {
  ThreadPool pool(1);
  OpsContext ops(Kernels(), pool);
  const auto expect_numbers = [](const MatMulSpeed& speed) {
    EXPECT_TRUE(std::isfinite(speed.bytes_per_second) && std::isfinite(speed.flops));
    EXPECT_GT(speed.bytes_per_second, 1e6);
    EXPECT_GT(speed.flops, 1e6);
  };
  expect_numbers(MeasureMatMul(ops, DType::kBF16, BlockFormat::kNone, 0.001));
  expect_numbers(MeasureMatMul(ops, DType::kF32, BlockFormat::kNone, 0.001));
  for (const BlockFormat block : kBlockFormats) {
    expect_numbers(MeasureMatMul(ops, DType::kBF16, block, 0.001));
  }
}

}  // namespace
}  // namespace tandem::engine
