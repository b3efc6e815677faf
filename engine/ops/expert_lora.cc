#include "engine/ops/expert_lora.h"

#include <algorithm>
#include <functional>

#include "engine/base/check.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/parallel.h"

namespace tandem::engine {
namespace {

// One task takes some slots of one expert through A and B.
constexpr int64_t kSlotsPerTask = 32;

int64_t ExpertLoraPanels(int64_t n) { return (n + kLanes - 1) / kLanes; }

// The rows to adapt, sorted by expert.
struct AdaptedSlots {
  const ConstMatrix& x;
  int64_t first_row;
  int64_t top_k;
  std::span<const int32_t> first;  // per expert, into `slots`
  std::span<const int32_t> slots;  // (row - first_row) * top_k + slot
  float* y;
  int64_t ldy;
  const Matrix* hidden;

  int64_t Count(int64_t expert) const {
    return first[static_cast<size_t>(expert) + 1] - first[static_cast<size_t>(expert)];
  }
};

// Scratch of a worker: rows of x, A . x, h and rows of y.
struct LoraTaskScratch {
  LoraTaskScratch(DType dtype, int64_t k, int64_t rank, int64_t n)
      : x(0),
        sum(x + kSlotsPerTask * RowStride(dtype, k) * static_cast<int64_t>(DTypeBytes(dtype))),
        h(sum + kSlotsPerTask * rank * static_cast<int64_t>(sizeof(float))),
        y(h + kSlotsPerTask * (rank + 1) * static_cast<int64_t>(sizeof(float))),
        bytes(y + kSlotsPerTask * n * static_cast<int64_t>(sizeof(float))) {}
  int64_t x, sum, h, y, bytes;
};

template <class T>
void RunSlots(const KernelTable& table, const AdaptedSlots& all, const LoraMatrices& lora,
              std::span<const int32_t> slots, std::byte* scratch) {
  const TypedKernels<T>& kernels = table.typed<T>();
  const int64_t rank = lora.a.n;
  const int64_t k = lora.a.k;
  const int64_t n = lora.b.n;
  const auto count = static_cast<int64_t>(slots.size());
  const LoraTaskScratch at(lora.a.dtype, k, rank, n);
  const bool shared = all.x.cols == k;
  const int64_t ldx = RowStride(lora.a.dtype, k);
  const int64_t ldh = RowStride(lora.b.dtype, rank);
  T* x = reinterpret_cast<T*>(scratch + at.x);
  auto* sum = reinterpret_cast<float*>(scratch + at.sum);
  T* h = reinterpret_cast<T*>(scratch + at.h);
  auto* y = reinterpret_cast<float*>(scratch + at.y);
  const auto y_of = [&](int32_t slot) {
    return all.y + (all.first_row + slot / all.top_k) * all.ldy + slot % all.top_k * n;
  };
  for (int64_t i = 0; i < count; ++i) {
    const int32_t slot = slots[static_cast<size_t>(i)];
    const T* row = static_cast<const T*>(all.x.data) +
                   (all.first_row + slot / all.top_k) * all.x.stride +
                   (shared ? 0 : slot % all.top_k * k);
    std::copy_n(row, k, x + i * ldx);
    std::fill(x + i * ldx + k, x + (i + 1) * ldx, T{});
    std::copy_n(y_of(slot), n, y + i * n);
  }
  kernels.matmul({.x = x,
                  .ldx = ldx,
                  .m = count,
                  .panels = reinterpret_cast<const T*>(lora.a.panels),
                  .n_panels = ExpertLoraPanels(rank),
                  .n_columns = rank,
                  .k = ldx,
                  .bias = nullptr,
                  .y = sum,
                  .ldy = rank,
                  .accumulate = false});
  table.scale(sum, lora.scale, count * rank, sum);
  kernels.round({.x = sum,
                 .up = nullptr,
                 .ldx = rank,
                 .rows = count,
                 .cols = rank,
                 .activation = Activation::kSilu,
                 .y = h,
                 .ldy = ldh});
  kernels.matmul({.x = h,
                  .ldx = ldh,
                  .m = count,
                  .panels = reinterpret_cast<const T*>(lora.b.panels),
                  .n_panels = ExpertLoraPanels(n),
                  .n_columns = n,
                  .k = ldh,
                  .bias = nullptr,
                  .y = y,
                  .ldy = n,
                  .accumulate = true});
  for (int64_t i = 0; i < count; ++i) {
    const int32_t slot = slots[static_cast<size_t>(i)];
    std::copy_n(y + i * n, n, y_of(slot));
    if (all.hidden == nullptr) continue;
    T* into =
        static_cast<T*>(all.hidden->data) + (all.first_row * all.top_k + slot) * all.hidden->stride;
    std::copy_n(h + i * ldh, ldh, into);
  }
}

}  // namespace

void AddExpertLora(OpsContext& ops, const ConstMatrix& x, const ConstMatrix& routing,
                   int64_t n_experts,
                   const std::function<const LoraMatrices*(int64_t expert)>& lora,
                   int64_t first_row, int64_t n_rows, float* y, int64_t ldy, const Matrix* hidden) {
  const int64_t top_k = routing.cols / 2;
  int64_t scratch = 0;
  for (int64_t e = 0; e < n_experts; ++e) {
    const LoraMatrices* one = lora(e);
    if (one == nullptr) continue;
    TANDEM_CHECK(x.dtype == one->a.dtype && x.dtype == one->b.dtype && one->b.k == one->a.n);
    TANDEM_CHECK(x.cols == one->a.k || x.cols == top_k * one->a.k);
    TANDEM_CHECK(hidden == nullptr || hidden->stride >= RowStride(x.dtype, one->a.n));
    scratch = std::max(scratch, LoraTaskScratch(x.dtype, one->a.k, one->a.n, one->b.n).bytes);
  }
  if (scratch == 0 || n_rows == 0) return;
  TANDEM_CHECK(first_row >= 0 && first_row + n_rows <= x.rows && x.rows == routing.rows);

  const auto n_slots = static_cast<size_t>(n_rows * top_k);
  const auto n_first = static_cast<size_t>(n_experts) + 1;
  auto* sorted =
      reinterpret_cast<int32_t*>(ops.SharedScratch((n_slots + n_first) * sizeof(int32_t)));
  const std::span<int32_t> first(sorted, n_first);
  const std::span<int32_t> slots(sorted + n_first, n_slots);
  const ConstMatrix part{static_cast<const float*>(routing.data) + first_row * routing.stride,
                         routing.dtype, n_rows, routing.cols, routing.stride};
  GroupByExpert(part, n_experts, first, slots);

  const AdaptedSlots all{x, first_row, top_k, first, slots, y, ldy, hidden};
  const auto tasks_of = [&](int64_t e) {
    return lora(e) == nullptr ? 0 : (all.Count(e) + kSlotsPerTask - 1) / kSlotsPerTask;
  };
  int64_t n_tasks = 0;
  for (int64_t e = 0; e < n_experts; ++e) n_tasks += tasks_of(e);
  ReserveWorkerScratch(ops, static_cast<size_t>(scratch));
  WithComputeType(x.dtype, [&]<class T>() {
    const auto run = [&](int64_t index, int worker) {
      // Counting through the experts is cheaper than a table of tasks.
      int64_t expert = 0;
      for (; index >= tasks_of(expert); ++expert) index -= tasks_of(expert);
      const int64_t begin = index * kSlotsPerTask;
      RunSlots<T>(ops.kernels(), all, *lora(expert),
                  all.slots.subspan(
                      static_cast<size_t>(first[static_cast<size_t>(expert)] + begin),
                      static_cast<size_t>(std::min(kSlotsPerTask, all.Count(expert) - begin))),
                  ops.WorkerScratch(worker, 0));
    };
    ops.pool().ParallelFor(n_tasks, std::cref(run));
  });
}

}  // namespace tandem::engine
