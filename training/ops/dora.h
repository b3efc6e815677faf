#pragma once

#include <cstdint>

#include "engine/ops/ops_context.h"

namespace tandem::training {

// The gradients of DoRA's y = factors * u + bias (engine/ops/dora.h), where the norms in `factors`
// count as constants (Liu et al. 2024, section 4.3).
struct DoraGradientArgs {
  const float* dy = nullptr;       // [rows, cols]
  const float* factors = nullptr;  // [cols]
  const float* inverse = nullptr;  // [cols], 1 / norm
  int64_t rows = 0;
  int64_t cols = 0;
  float* u = nullptr;           // [rows, cols]; becomes du = factors * dy
  float* dmagnitude = nullptr;  // [cols]; += the sum over rows of dy * u / norm
};

// Rows are added in fixed blocks of 1,024, in order: chunks of such blocks give the same bits.
void DoraGradient(engine::OpsContext& ops, const DoraGradientArgs& args);

}  // namespace tandem::training
