#include "engine/ops/lora.h"

#include <algorithm>
#include <functional>

#include "engine/base/check.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/parallel.h"
#include "engine/ops/rows.h"

namespace tandem::engine {
namespace {

// One task takes some rows through A and B, so h stays on its worker. The matrices are small; only
// many rows justify more tasks.
constexpr int64_t kTaskRows = 64;
// Below this many multiply-adds, a second core does not pay (engine/ops/matmul.cc).
constexpr int64_t kWorthSharing = 1 << 16;

int64_t TasksOf(const LoraRows& rows) { return (rows.n_rows + kTaskRows - 1) / kTaskRows; }

int64_t LoraPanels(int64_t n) { return (n + kLanes - 1) / kLanes; }

// y[rows, :] += B . h
template <class T>
void AddProduct(const KernelTable& table, const T* h, int64_t ldh, int64_t n_rows,
                const PanelMatrix& b, float* y, int64_t ldy) {
  table.typed<T>().matmul({.x = h,
                           .ldx = ldh,
                           .m = n_rows,
                           .panels = reinterpret_cast<const T*>(b.panels),
                           .n_panels = LoraPanels(b.n),
                           .n_columns = b.n,
                           .k = RowStride(b.dtype, b.k),
                           .bias = nullptr,
                           .y = y,
                           .ldy = ldy,
                           .accumulate = true});
}

// y = factors * y + bias
void ScaleOutputs(const float* factors, const float* bias, int64_t n_rows, int64_t n, float* y,
                  int64_t ldy) {
  for (int64_t row = 0; row < n_rows; ++row) {
    float* to = y + row * ldy;
    if (bias == nullptr) {
      for (int64_t i = 0; i < n; ++i) to[i] *= factors[i];
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] = to[i] * factors[i] + bias[i];
    }
  }
}

template <class T>
void RunTask(const KernelTable& table, const ConstMatrix& x, const LoraRows& part,
             int64_t first_row, int64_t n_rows, float* y, int64_t ldy, std::byte* scratch,
             const Matrix* hidden) {
  const TypedKernels<T>& kernels = table.typed<T>();
  const LoraMatrices& lora = *part.lora;
  const int64_t rank = lora.a.n;
  auto* sum = reinterpret_cast<float*>(scratch);
  kernels.matmul({.x = static_cast<const T*>(x.data) + first_row * x.stride,
                  .ldx = x.stride,
                  .m = n_rows,
                  .panels = reinterpret_cast<const T*>(lora.a.panels),
                  .n_panels = LoraPanels(rank),
                  .n_columns = rank,
                  .k = RowStride(lora.a.dtype, lora.a.k),
                  .bias = nullptr,
                  .y = sum,
                  .ldy = rank,
                  .accumulate = false});
  table.scale(sum, lora.scale, n_rows * rank, sum);
  T* h = reinterpret_cast<T*>(sum + n_rows * rank);
  int64_t ldh = RowStride(lora.b.dtype, rank);
  if (hidden != nullptr) {
    ldh = hidden->stride;
    h = static_cast<T*>(hidden->data) + first_row * ldh;
  }
  kernels.round({.x = sum,
                 .up = nullptr,
                 .ldx = rank,
                 .rows = n_rows,
                 .cols = rank,
                 .activation = Activation::kSilu,
                 .y = h,
                 .ldy = ldh});
  AddProduct<T>(table, h, ldh, n_rows, lora.b, y + first_row * ldy, ldy);
  if (lora.factors == nullptr) return;
  ScaleOutputs(lora.factors, part.bias, n_rows, lora.b.n, y + first_row * ldy, ldy);
}

}  // namespace

void AddLora(OpsContext& ops, const ConstMatrix& x, std::span<const LoraRows> rows, float* y,
             int64_t ldy, const Matrix* hidden) {
  int64_t n_tasks = 0, work = 0, most_rank = 0;
  for (const LoraRows& part : rows) {
    const LoraMatrices& lora = *part.lora;
    const int64_t rank = lora.a.n;
    TANDEM_CHECK(x.dtype == lora.a.dtype && x.dtype == lora.b.dtype);
    TANDEM_CHECK(x.cols == lora.a.k && lora.b.k == rank && rank >= 1);
    TANDEM_CHECK(part.bias == nullptr || lora.factors != nullptr);
    TANDEM_CHECK(part.first_row >= 0 && part.n_rows >= 1 && part.first_row + part.n_rows <= x.rows);
    TANDEM_CHECK(hidden == nullptr || (hidden->cols == rank && hidden->dtype == x.dtype));
    n_tasks += TasksOf(part);
    work += part.n_rows * rank * (lora.a.k + lora.b.n);
    most_rank = std::max(most_rank, rank);
  }
  if (n_tasks == 0) return;

  ReserveWorkerScratch(ops, static_cast<size_t>(kTaskRows * (2 * most_rank + 2)) * sizeof(float));
  WithComputeType(x.dtype, [&]<class T>() {
    const auto run = [&](int64_t index, int worker) {
      // A step has few parts: counting through them is cheaper than a table of tasks.
      const LoraRows* part = rows.data();
      for (; index >= TasksOf(*part); ++part) index -= TasksOf(*part);
      const int64_t begin = index * kTaskRows;
      RunTask<T>(ops.kernels(), x, *part, part->first_row + begin,
                 std::min(kTaskRows, part->n_rows - begin), y, ldy, ops.WorkerScratch(worker, 0),
                 hidden);
    };
    if (work < kWorthSharing) {
      for (int64_t i = 0; i < n_tasks; ++i) run(i, 0);
    } else {
      ops.pool().ParallelFor(n_tasks, std::cref(run));
    }
  });
}

void AddLowRank(OpsContext& ops, const ConstMatrix& h, const PanelMatrix& b, float* y,
                int64_t ldy) {
  TANDEM_CHECK(h.dtype == b.dtype && h.cols == b.k);
  WithComputeType(h.dtype, [&]<class T>() {
    const auto run = [&](int64_t first, int64_t count, int) {
      AddProduct<T>(ops.kernels(), static_cast<const T*>(h.data) + first * h.stride, h.stride,
                    count, b, y + first * ldy, ldy);
    };
    ParallelRows(ops, h.rows, b.n * b.k, run);
  });
}

void AddEmbeddingLora(OpsContext& ops, const LoraMatrices& lora, std::span<const TokenId> tokens,
                      float* y, int64_t ldy, const Matrix* hidden) {
  TANDEM_CHECK(lora.b.k == lora.a.k && lora.factors == nullptr);
  const auto rows = static_cast<int64_t>(tokens.size());
  const int64_t rank = lora.a.k;
  const int64_t stride = RowStride(lora.b.dtype, rank);
  // Two buffers of at most four bytes per number.
  const int64_t sums = RoundUp<int64_t>(rows * rank, 16);
  auto* sum = reinterpret_cast<float*>(
      ops.SharedScratch(static_cast<size_t>(sums + rows * stride) * sizeof(float)));
  GatherRows(ops, lora.a, tokens, sum, rank);
  ScaleRows(ops, sum, lora.scale, rows * rank, sum);
  const Matrix h =
      hidden != nullptr ? *hidden : Matrix{sum + sums, lora.b.dtype, rows, rank, stride};
  TANDEM_CHECK(h.rows == rows && h.cols == rank && h.dtype == lora.b.dtype);
  RoundRows(ops, sum, rank, h);
  AddLowRank(ops, h, lora.b, y, ldy);
}

}  // namespace tandem::engine
