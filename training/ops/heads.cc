#include "training/ops/heads.h"

#include "engine/kernels/training_kernels.h"
#include "engine/ops/parallel.h"

namespace tandem::training {

using engine::OpsContext;

void SliceHeadsBackward(OpsContext& ops, const float* dy, int64_t rows, int64_t n_heads,
                        int64_t head_dim, int64_t first, int64_t count, float* dx) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  engine::ParallelRows(ops, rows, n_heads * count, [&](int64_t first_row, int64_t n_rows, int) {
    for (int64_t head = first_row * n_heads; head < (first_row + n_rows) * n_heads; ++head) {
      kernels.accumulate(dy + head * count, count, dx + head * head_dim + first);
    }
  });
}

void JoinHeadsBackward(OpsContext& ops, const float* dy, int64_t rows, int64_t a_dim, int64_t b_dim,
                       int64_t b_heads, int64_t n_heads, float* da, float* db) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  const int64_t dim = a_dim + b_dim;
  engine::ParallelRows(ops, rows, n_heads * dim, [&](int64_t first_row, int64_t n_rows, int) {
    for (int64_t row = first_row; row < first_row + n_rows; ++row) {
      for (int64_t h = 0; h < n_heads; ++h) {
        const int64_t head = row * n_heads + h;
        kernels.accumulate(dy + head * dim, a_dim, da + head * a_dim);
        kernels.accumulate(dy + head * dim + a_dim, b_dim,
                           db + (row * b_heads + h % b_heads) * b_dim);
      }
    }
  });
}

}  // namespace tandem::training
