#include "training/ops/dora.h"

#include <algorithm>
#include <array>

namespace tandem::training {
namespace {

constexpr int64_t kColumnsAtOnce = 64;
constexpr int64_t kRowsPerBlock = 1024;

void GradientOfColumns(const DoraGradientArgs& args, int64_t first, int64_t count) {
  for (int64_t block = 0; block < args.rows; block += kRowsPerBlock) {
    std::array<float, kColumnsAtOnce> sums = {};
    const int64_t end = std::min(args.rows, block + kRowsPerBlock);
    for (int64_t row = block; row < end; ++row) {
      const float* dy = args.dy + row * args.cols + first;
      float* u = args.u + row * args.cols + first;
      for (int64_t i = 0; i < count; ++i) {
        sums[static_cast<size_t>(i)] += dy[i] * u[i];
        u[i] = args.factors[first + i] * dy[i];
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      args.dmagnitude[first + i] += sums[static_cast<size_t>(i)] * args.inverse[first + i];
    }
  }
}

}  // namespace

void DoraGradient(engine::OpsContext& ops, const DoraGradientArgs& args) {
  const int64_t n_tasks = (args.cols + kColumnsAtOnce - 1) / kColumnsAtOnce;
  ops.pool().ParallelFor(n_tasks, [&](int64_t task, int) {
    const int64_t first = task * kColumnsAtOnce;
    GradientOfColumns(args, first, std::min(kColumnsAtOnce, args.cols - first));
  });
}

}  // namespace tandem::training
