#include "training/ops/norm.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/kernels/training_kernels.h"

namespace tandem::training {
namespace {

using engine::NormBackwardArgs;
using engine::OpsContext;

// Rows per partial sum of the parameter gradients. Fixed, so that the threads cannot change a bit.
constexpr int64_t kBlockRows = 256;

// Runs `kernel` over blocks of rows. Each block sums its own parameter gradients; they are added in
// block order. `args` points to row 0.
void RunInBlocks(OpsContext& ops, void (*kernel)(const NormBackwardArgs&) noexcept,
                 const NormBackwardArgs& args, int64_t stats_per_row) {
  const int64_t n_blocks = (args.rows + kBlockRows - 1) / kBlockRows;
  const int64_t n_sums = (args.dgamma != nullptr ? 1 : 0) + (args.dbeta != nullptr ? 1 : 0);
  const size_t bytes = static_cast<size_t>(n_blocks * n_sums * args.cols) * sizeof(float);
  float* partial = n_sums > 0 ? reinterpret_cast<float*>(ops.SharedScratch(bytes)) : nullptr;
  if (partial != nullptr) std::memset(partial, 0, bytes);
  ops.pool().ParallelFor(n_blocks, [&](int64_t block, int) {
    const int64_t first = block * kBlockRows;
    NormBackwardArgs a = args;
    a.rows = std::min(kBlockRows, args.rows - first);
    a.x += first * args.cols;
    a.dy += first * args.cols;
    a.stats += first * stats_per_row;
    if (a.dx != nullptr) a.dx += first * args.cols;
    float* sums = partial + block * n_sums * args.cols;
    if (a.dgamma != nullptr) {
      a.dgamma = sums;
      sums += args.cols;
    }
    if (a.dbeta != nullptr) a.dbeta = sums;
    kernel(a);
  });
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  for (int64_t block = 0; block < n_blocks; ++block) {
    const float* sums = partial + block * n_sums * args.cols;
    if (args.dgamma != nullptr) {
      kernels.accumulate(sums, args.cols, args.dgamma);
      sums += args.cols;
    }
    if (args.dbeta != nullptr) kernels.accumulate(sums, args.cols, args.dbeta);
  }
}

}  // namespace

void RmsNormBackward(OpsContext& ops, const float* x, const float* gamma, const float* rstd,
                     const float* dy, int64_t rows, int64_t cols, float* dx, float* dgamma) {
  RunInBlocks(ops, engine::TrainingKernels(ops.kernels()).rms_norm_backward,
              {.x = x,
               .gamma = gamma,
               .stats = rstd,
               .dy = dy,
               .rows = rows,
               .cols = cols,
               .dx = dx,
               .dgamma = dgamma,
               .dbeta = nullptr},
              1);
}

void LayerNormBackward(OpsContext& ops, const float* x, const float* gamma, const float* mean_rstd,
                       const float* dy, int64_t rows, int64_t cols, float* dx, float* dgamma,
                       float* dbeta) {
  RunInBlocks(ops, engine::TrainingKernels(ops.kernels()).layer_norm_backward,
              {.x = x,
               .gamma = gamma,
               .stats = mean_rstd,
               .dy = dy,
               .rows = rows,
               .cols = cols,
               .dx = dx,
               .dgamma = dgamma,
               .dbeta = dbeta},
              2);
}

}  // namespace tandem::training
