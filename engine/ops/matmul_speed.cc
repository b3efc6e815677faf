#include "engine/ops/matmul_speed.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/ops/matmul.h"

namespace tandem::engine {
namespace {

constexpr int64_t kOutputs = 8192, kInputs = 2048;
constexpr int64_t kManyRows = 256;
// More than the caches of most machines.
constexpr int64_t kCycleBytes = 400'000'000;
// This byte everywhere is a small normal number in every type, also as a scale: about 0.01 in bf16
// and f32, 1.06 in f16.
constexpr int kFill = 0x3c;

// The median time of step(index), with `index` cycling below `cycle`.
template <typename Step>
double MedianSecondsOf(int64_t cycle, double seconds, const Step& step) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  step(0);
  std::vector<double> times;
  const auto start = Clock::now();
  for (int64_t i = 1; since(start) < seconds || times.size() < 3; ++i) {
    const auto from = Clock::now();
    step(i % cycle);
    times.push_back(since(from));
  }
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return std::max(*middle, 1e-9);
}

}  // namespace

MatMulSpeed MeasureMatMul(OpsContext& ops, DType dtype, BlockFormat block, double seconds) {
  const int64_t weight_bytes = block == BlockFormat::kNone ? PanelBytes(dtype, kOutputs, kInputs)
                                                           : PanelBytes(block, kOutputs, kInputs);
  const int64_t copies = kCycleBytes / weight_bytes + 1;
  AlignedBuffer weights(static_cast<size_t>(weight_bytes * copies));
  std::memset(weights.data(), kFill, weights.size());
  const int64_t stride = RowStride(dtype, kInputs);
  AlignedBuffer x(static_cast<size_t>(kManyRows * stride) * DTypeBytes(dtype));
  std::memset(x.data(), kFill, x.size());
  AlignedBuffer y(static_cast<size_t>(kManyRows * kOutputs) * sizeof(float));
  const auto product = [&](int64_t rows, int64_t copy) {
    const PanelMatrix w{weights.data() + copy * weight_bytes, dtype, kOutputs, kInputs, block};
    MatMul(ops, {x.data(), dtype, rows, kInputs, stride}, w, nullptr, y.as<float>(), kOutputs);
  };
  MatMulSpeed speed;
  speed.bytes_per_second = static_cast<double>(weight_bytes) /
                           MedianSecondsOf(copies, seconds, [&](int64_t i) { product(1, i); });
  speed.flops = 2.0 * kManyRows * kOutputs * kInputs /
                MedianSecondsOf(copies, seconds, [&](int64_t i) { product(kManyRows, i); });
  return speed;
}

}  // namespace tandem::engine
