#pragma once

#include <cstdint>

#include "engine/ops/rows.h"

namespace tandem::training {

// Backward of engine::RmsNorm. `dy` and `dx` are dense f32 [rows, cols]; dx += …; `rstd` is the
// forward's. dgamma [cols] += … (null: frozen), summed over fixed blocks of 256 rows, in order.
void RmsNormBackward(engine::OpsContext& ops, const float* x, const float* gamma, const float* rstd,
                     const float* dy, int64_t rows, int64_t cols, float* dx, float* dgamma);

// Backward of engine::LayerNorm, summed the same way; gamma may be null. `mean_rstd` [rows, 2] is
// the forward's.
void LayerNormBackward(engine::OpsContext& ops, const float* x, const float* gamma,
                       const float* mean_rstd, const float* dy, int64_t rows, int64_t cols,
                       float* dx, float* dgamma, float* dbeta);

}  // namespace tandem::training
