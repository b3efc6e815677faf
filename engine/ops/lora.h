#pragma once

#include <cstdint>
#include <span>

#include "engine/ops/matmul.h"
#include "engine/ops/ops_context.h"
#include "engine/ops/rows.h"

namespace tandem::engine {

// The low-rank adapter of one linear layer (Hu et al. 2021): A [rank, in] and B [out, rank] in
// panels of the compute dtype, and the factor of A x.
struct LoraMatrices {
  PanelMatrix a;
  PanelMatrix b;
  float scale = 1;
};

// A run of rows of a batch with one adapter.
struct LoraRows {
  const LoraMatrices* lora = nullptr;
  int64_t first_row = 0;
  int64_t n_rows = 0;
};

// y += B . h with h = scale * (A . x), on the given rows; other rows do not change. y holds the
// layer's own product, bias included, for any weight format. A . x is summed in f32 in k order,
// scaled, and rounded once to the compute dtype. B . h continues the f32 sum that is in y, in rank
// order. A row's bits depend on that row alone. `hidden` (or null) receives h: [rows of x, rank] in
// the compute dtype; all `rows` must then have one rank.
void AddLora(OpsContext& ops, const ConstMatrix& x, std::span<const LoraRows> rows, float* y,
             int64_t ldy, const Matrix* hidden);

}  // namespace tandem::engine
