#pragma once

#include <cstdint>
#include <functional>

#include "engine/ops/experts.h"

namespace tandem::training {

// Backward of mixtures of experts (engine/ops/experts.h). Shapes are those of the forward ops;
// gradients are dense f32. Results do not depend on the number of threads.

// dlogits [rows, n_experts] += the gradient of Route. The choice of experts is a constant; ids
// have no gradient, and neither has the selection bias. `drouting` is [rows, 2 * top_k].
void RouteBackward(engine::OpsContext& ops, const float* logits, const engine::RouterSpec& spec,
                   const engine::ConstMatrix& routing, const float* drouting, float* dlogits);

// Of out = CombineExperts(y, routing), with `dout` [rows, n]: dy [rows, top_k * n] = or += weight *
// dout (null: not needed); the weights' columns of drouting [rows, 2 * top_k] += dot(y, dout)
// (null: not needed, and then y is not read).
void CombineBackward(engine::OpsContext& ops, const float* y, const engine::ConstMatrix& routing,
                     const float* dout, int64_t n, float* dy, bool accumulate, float* drouting);

// Weight gradients sum the slots of an expert in blocks of rows, [0, 1024), [1024, 2048), …, in
// order. Splitting a batch at multiples of 1,024 rows therefore changes nothing, as in
// MatMulWeightGrad. An expert has at most one slot per row, so a block has at most as many slots.
inline constexpr int64_t kExpertBlockRows = 1024;

// The slots of one expert, of those that engine::GroupByExpert sorted.
std::span<const int32_t> SlotsOf(std::span<const int32_t> slots, std::span<const int32_t> first,
                                 int64_t expert);

// The end of the slots from `begin` that are gathered together: whole blocks of rows, at most
// kExpertBlockRows slots. `slots` are one expert's, ascending.
size_t GatherEnd(std::span<const int32_t> slots, size_t begin, int64_t top_k);

// dw [n, k] += dy^T . x block by block, for gathered rows of `slots`.
void AddBlockedWeightGrad(engine::OpsContext& ops, const engine::Matrix& dy,
                          const engine::Matrix& x, std::span<const int32_t> slots, int64_t top_k,
                          float* dw);

// One projection of all experts, its output gradient, and where its gradients go.
struct ExpertLinearGradient {
  engine::ConstMatrix x;        // [rows, k] or [rows, top_k * k], in the compute dtype
  engine::ConstMatrix routing;  // [rows, 2 * top_k]
  int64_t n_experts = 0;
  int64_t n = 0;              // outputs of an expert
  int64_t k = 0;              // inputs
  const float* dy = nullptr;  // [rows, top_k * n]
  std::function<const engine::PanelMatrix&(int64_t expert)> weight;
  std::function<float*(int64_t expert)> dw;  // [n, k], +=; null: frozen
  std::function<float*(int64_t expert)> db;  // [n], +=; null: none or frozen
  float* dx = nullptr;                       // like x, dense; null: not needed
  bool accumulate = false;                   // dx += instead of =

  int64_t top_k() const { return routing.cols / 2; }
  bool shared_input() const { return x.cols == k && top_k() > 1; }
};

// A sum over the slots of a row (shared x) runs in ascending order of experts. An expert without
// rows adds nothing. `scratch` holds ExpertGradientScratch(...) bytes, 64-byte aligned.
void ExpertLinearBackward(engine::OpsContext& ops, const ExpertLinearGradient& gradient,
                          std::byte* scratch);
int64_t ExpertGradientScratch(engine::DType dtype, int64_t rows, int64_t top_k, int64_t n_experts,
                              int64_t n, int64_t k);

// Copies the columns [slot * cols, ...) of the rows of `slots` (row * top_k + slot), rounded to the
// matrix's dtype; `shared`: columns [0, cols) for every slot. Padding columns of `out` become 0.
void GatherSlots(engine::OpsContext& ops, const engine::ConstMatrix& from, bool shared,
                 int64_t top_k, std::span<const int32_t> slots, const engine::Matrix& out);
// The same for f32 rows `ldfrom` apart, rounded to the dtype of `out`.
void GatherSlotsRounded(engine::OpsContext& ops, const float* from, int64_t ldfrom, int64_t top_k,
                        std::span<const int32_t> slots, const engine::Matrix& out);
// Adds, or writes, rows of `from` [slots, cols] to the places of their slots; the inverse of
// GatherSlots. With `shared`, no two slots may be of the same row.
void ScatterSlots(engine::OpsContext& ops, const float* from, int64_t cols, bool shared,
                  int64_t top_k, std::span<const int32_t> slots, bool accumulate, float* into,
                  int64_t ldinto);

}  // namespace tandem::training
