#include "training/ops/expert_lora.h"

#include <algorithm>

#include "engine/base/check.h"
#include "training/ops/experts.h"

namespace tandem::training {
namespace {

using engine::DType;
using engine::Matrix;

// Sorted slots, then a block of rows of x, dy, h, dh (f32 and rounded) and dx.
struct LoraGradientScratch {
  LoraGradientScratch(DType dtype, int64_t rows, int64_t top_k, int64_t n_experts, int64_t n,
                      int64_t k, int64_t rank)
      : block_rows(std::min(kExpertBlockRows, rows)) {
    const auto width = static_cast<int64_t>(engine::DTypeBytes(dtype));
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    const auto take = [this](int64_t bytes) {
      const int64_t at = total;
      total += RoundUp<int64_t>(bytes, 64);
      return at;
    };
    first = take((n_experts + 1) * kFloat);
    slots = take(rows * top_k * kFloat);
    x = take(block_rows * engine::RowStride(dtype, k) * width);
    dy = take(block_rows * engine::RowStride(dtype, n) * width);
    h = take(block_rows * engine::RowStride(dtype, rank) * width);
    dh = take(block_rows * engine::RowStride(dtype, rank) * width);
    dh32 = take(block_rows * rank * kFloat);
    dx = take(block_rows * k * kFloat);
  }
  int64_t block_rows;
  int64_t first = 0, slots = 0, x = 0, dy = 0, h = 0, dh = 0, dh32 = 0, dx = 0;
  int64_t total = 0;
};

// The gradients of one expert's adapter from a block of its slots.
void BlockBackward(engine::OpsContext& ops, const ExpertLoraGradient& g, int64_t expert,
                   std::span<const int32_t> block, const LoraGradientScratch& at,
                   std::byte* scratch) {
  const engine::LoraMatrices& lora = *g.lora(expert);
  const DType dtype = g.x.dtype;
  const int64_t top_k = g.routing.cols / 2;
  const int64_t rank = lora.a.n;
  const auto count = static_cast<int64_t>(block.size());
  const bool shared = g.x.cols == g.k && top_k > 1;
  const auto rounded = [&](int64_t offset, int64_t cols) {
    return Matrix{scratch + offset, dtype, count, cols, engine::RowStride(dtype, cols)};
  };
  const Matrix dy = rounded(at.dy, g.n);
  GatherSlotsRounded(ops, g.dy, top_k * g.n, top_k, block, dy);
  const Matrix h = rounded(at.h, rank);
  GatherSlots(ops, g.hidden, false, 1, block, h);
  AddBlockedWeightGrad(ops, dy, h, block, top_k, g.db(expert));

  auto* dh32 = reinterpret_cast<float*>(scratch + at.dh32);
  engine::MatMulInputGrad(ops, dy, lora.b, dh32, rank, false);
  engine::ScaleRows(ops, dh32, lora.scale, count * rank, dh32);
  const Matrix dh = rounded(at.dh, rank);
  engine::RoundRows(ops, dh32, rank, dh);
  const Matrix x = rounded(at.x, g.k);
  GatherSlots(ops, g.x, shared, top_k, block, x);
  AddBlockedWeightGrad(ops, dh, x, block, top_k, g.da(expert));
  if (g.dx == nullptr) return;
  auto* dx = reinterpret_cast<float*>(scratch + at.dx);
  engine::MatMulInputGrad(ops, dh, lora.a, dx, g.k, false);
  ScatterSlots(ops, dx, g.k, shared, top_k, block, true, g.dx, g.x.cols);
}

}  // namespace

int64_t ExpertLoraGradientScratch(DType dtype, int64_t rows, int64_t top_k, int64_t n_experts,
                                  int64_t n, int64_t k, int64_t rank) {
  return LoraGradientScratch(dtype, rows, top_k, n_experts, n, k, rank).total;
}

void ExpertLoraBackward(engine::OpsContext& ops, const ExpertLoraGradient& g, int64_t rank,
                        std::byte* scratch) {
  const int64_t rows = g.x.rows;
  const int64_t top_k = g.routing.cols / 2;
  const LoraGradientScratch at(g.x.dtype, rows, top_k, g.n_experts, g.n, g.k, rank);
  const std::span first(reinterpret_cast<int32_t*>(scratch + at.first),
                        static_cast<size_t>(g.n_experts + 1));
  const std::span slots(reinterpret_cast<int32_t*>(scratch + at.slots),
                        static_cast<size_t>(rows * top_k));
  engine::GroupByExpert(g.routing, g.n_experts, first, slots);
  for (int64_t expert = 0; expert < g.n_experts; ++expert) {
    if (g.lora(expert) == nullptr) continue;
    TANDEM_CHECK(g.lora(expert)->a.n <= rank);
    const auto own = SlotsOf(slots, first, expert);
    for (size_t begin = 0; begin < own.size();) {
      const size_t end = GatherEnd(own, begin, top_k);
      BlockBackward(ops, g, expert, own.subspan(begin, end - begin), at, scratch);
      begin = end;
    }
  }
}

}  // namespace tandem::training
