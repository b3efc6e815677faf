#include "engine/ops/heads.h"

#include <cstring>
#include <vector>

#include "engine/base/check.h"
#include "engine/ops/parallel.h"

namespace tandem::engine {
namespace {

float* Dense(const Matrix& y) {
  TANDEM_CHECK(y.dtype == DType::kF32 && y.stride == y.cols);
  return static_cast<float*>(y.data);
}

void CopyFloats(float* to, const float* from, int64_t n) {
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}

}  // namespace

void SliceHeads(OpsContext& ops, const float* x, int64_t ldx, int64_t n_heads, int64_t head_dim,
                int64_t first, const Matrix& y) {
  TANDEM_CHECK(n_heads > 0 && y.cols % n_heads == 0);
  const int64_t count = y.cols / n_heads;
  TANDEM_CHECK(first >= 0 && first + count <= head_dim);
  float* out = Dense(y);
  ParallelRows(ops, y.rows, y.cols, [&](int64_t first_row, int64_t rows, int) {
    for (int64_t row = first_row; row < first_row + rows; ++row) {
      for (int64_t h = 0; h < n_heads; ++h) {
        CopyFloats(out + row * y.cols + h * count, x + row * ldx + h * head_dim + first, count);
      }
    }
  });
}

void JoinHeads(OpsContext& ops, const float* a, int64_t a_dim, const float* b, int64_t b_dim,
               int64_t b_heads, int64_t n_heads, const Matrix& y) {
  TANDEM_CHECK(y.cols == n_heads * (a_dim + b_dim) && (b_heads == n_heads || b_heads == 1));
  float* out = Dense(y);
  ParallelRows(ops, y.rows, y.cols, [&](int64_t first_row, int64_t rows, int) {
    for (int64_t row = first_row; row < first_row + rows; ++row) {
      for (int64_t h = 0; h < n_heads; ++h) {
        float* to = out + row * y.cols + h * (a_dim + b_dim);
        CopyFloats(to, a + (row * n_heads + h) * a_dim, a_dim);
        CopyFloats(to + a_dim, b + (row * b_heads + h % b_heads) * b_dim, b_dim);
      }
    }
  });
}

const float* OnesOfNorm(int64_t length) {
  static const std::vector<float> ones(kMaxPlainNorm, 1.0f);
  TANDEM_CHECK(length > 0 && length <= kMaxPlainNorm);
  return ones.data();
}

void PlainRmsNorm(OpsContext& ops, const float* x, int64_t length, float eps, const Matrix& y,
                  float* rstd) {
  RmsNormRuns(ops, x, OnesOfNorm(length), length, eps, y, rstd);
}

}  // namespace tandem::engine
