#pragma once

#include <cstdint>
#include <span>

#include "engine/base/ids.h"
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
  // DoRA (Liu et al. 2024): the factor of each output, [out] (dora.h). Null: plain LoRA.
  const float* factors = nullptr;
};

// A run of rows of a batch with one adapter.
struct LoraRows {
  const LoraMatrices* lora = nullptr;
  int64_t first_row = 0;
  int64_t n_rows = 0;
  const float* bias = nullptr;  // of the layer, added last; only with DoRA's factors
};

// y += B . h with h = scale * (A . x), on the given rows; other rows do not change. y holds the
// layer's own product, bias included, for any weight format. With DoRA's factors it holds the
// product alone, and y becomes factors * (y + B . h) + bias. A . x is summed in f32 in k order,
// scaled, and rounded once to the compute dtype. B . h continues the f32 sum that is in y, in rank
// order. A row's bits depend on that row alone. `hidden` (or null) receives h: [rows of x, rank] in
// the compute dtype; all `rows` must then have one rank.
void AddLora(OpsContext& ops, const ConstMatrix& x, std::span<const LoraRows> rows, float* y,
             int64_t ldy, const Matrix* hidden);

// y += B . h for all rows of h, which is in the compute dtype: AddLora's second half.
void AddLowRank(OpsContext& ops, const ConstMatrix& h, const PanelMatrix& b, float* y, int64_t ldy);

// y += B . h with h = scale * (the tokens' rows of A^T), for a table of embeddings. `lora.a` holds
// A^T, [rows of the table, rank]. h is rounded once to the compute dtype; `hidden` (or null)
// receives it, [tokens, rank]. A token beyond the table has row 0, as in GatherRows.
void AddEmbeddingLora(OpsContext& ops, const LoraMatrices& lora, std::span<const TokenId> tokens,
                      float* y, int64_t ldy, const Matrix* hidden);

}  // namespace tandem::engine
