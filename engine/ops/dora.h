#pragma once

#include <cstdint>

#include "engine/ops/lora.h"

namespace tandem::engine {

// DoRA (Liu et al. 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation"): a layer's weight is
// m * V / |V| row by row, with V = W + scale * B A. Its output is factors * (V x) + bias, so
// inference needs one factor per output.

// norms[i] = the length of row i of W + scale * B A, [w.n]; of W alone when `lora` is null. W may
// be in blocks: their values count. Sums have a fixed order, so equal weights give equal bits.
void RowNorms(OpsContext& ops, const PanelMatrix& w, const LoraMatrices* lora, float* norms);

// factors[i] = magnitude[i] / norm[i], and inverse[i] = 1 / norm[i] (null: not wanted), where norm
// is that of RowNorms. A row of length 0 has the factor 0.
void DoraFactors(OpsContext& ops, const PanelMatrix& w, const LoraMatrices& lora,
                 const float* magnitude, float* factors, float* inverse);

}  // namespace tandem::engine
