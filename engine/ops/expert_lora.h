#pragma once

#include <cstdint>
#include <functional>

#include "engine/ops/experts.h"
#include "engine/ops/lora.h"

namespace tandem::engine {

// Adapters of experts. y [rows, top_k * n] holds the result of ExpertMatMul; each slot of the rows
// [first_row, first_row + n_rows) adds B . h with h = scale * (A . x) of its expert's adapter.
// Slots of experts without an adapter (null) do not change. x is as in ExpertMatMul. A slot has the
// bits of AddLora on that row alone. `hidden` (or null) receives h: row `row * top_k + slot` of
// [rows * top_k, at least the rank], in the compute dtype.
void AddExpertLora(OpsContext& ops, const ConstMatrix& x, const ConstMatrix& routing,
                   int64_t n_experts,
                   const std::function<const LoraMatrices*(int64_t expert)>& lora,
                   int64_t first_row, int64_t n_rows, float* y, int64_t ldy, const Matrix* hidden);

}  // namespace tandem::engine
