#pragma once

#include <cstdint>

#include "engine/ops/ops_context.h"
#include "engine/ops/rows.h"

namespace tandem::engine {

// Rows of heads taken apart and put together again. All matrices are f32.

// y[row, h, i] = x[row, h, first + i]: a run of y.cols / n_heads columns of each head. Heads of x
// are `head_dim` wide, its rows `ldx` floats apart.
void SliceHeads(OpsContext& ops, const float* x, int64_t ldx, int64_t n_heads, int64_t head_dim,
                int64_t first, const Matrix& y);

// y[row, h] = a[row, h] then b[row, h]. `a` has n_heads heads; `b` has as many, or one head that
// all share. Rows of a, b and y are dense.
void JoinHeads(OpsContext& ops, const float* a, int64_t a_dim, const float* b, int64_t b_dim,
               int64_t b_heads, int64_t n_heads, const Matrix& y);

// RMSNorm of every run of `length` columns, without a scale: x / sqrt(mean(x^2) + eps). x and y are
// dense; `rstd` (a float per run) may be null. REQUIRES: length <= kMaxPlainNorm.
inline constexpr int64_t kMaxPlainNorm = 1 << 18;
void PlainRmsNorm(OpsContext& ops, const float* x, int64_t length, float eps, const Matrix& y,
                  float* rstd);
// The scale of PlainRmsNorm as a vector, for its gradient: ones.
const float* OnesOfNorm(int64_t length);

}  // namespace tandem::engine
