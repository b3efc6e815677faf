#pragma once

#include <cstdint>

#include "engine/ops/ops_context.h"

namespace tandem::training {

// Backward of engine::SliceHeads: dx[row, h, first + i] += dy[row, h, i]. dx is dense with heads of
// `head_dim`, dy is dense with heads of `count`.
void SliceHeadsBackward(engine::OpsContext& ops, const float* dy, int64_t rows, int64_t n_heads,
                        int64_t head_dim, int64_t first, int64_t count, float* dx);

// Backward of engine::JoinHeads: da += and db +=. A shared head of b sums its heads in order.
void JoinHeadsBackward(engine::OpsContext& ops, const float* dy, int64_t rows, int64_t a_dim,
                       int64_t b_dim, int64_t b_heads, int64_t n_heads, float* da, float* db);

}  // namespace tandem::training
