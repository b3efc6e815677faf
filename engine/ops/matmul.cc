#include "engine/ops/matmul.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "engine/base/check.h"
#include "engine/base/trace/parallel_trace.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/block_rows.h"
#include "engine/ops/matmul_scratch.h"
#include "engine/ops/parallel.h"

namespace tandem::engine {
namespace {

// Adjacent elements of k in a panel.
int64_t PairOf(DType dtype) { return dtype == DType::kBF16 ? 2 : 1; }

int64_t PanelsOf(int64_t n) { return (n + kLanes - 1) / kLanes; }

template <class T>
constexpr DType kDTypeOf = std::is_same_v<T, float> ? DType::kF32 : DType::kBF16;

// Below this much work (multiply-adds), a second core does not pay.
constexpr int64_t kWorkPerTask = 1 << 16;

// The tile of one task in a product of [m, k] by n_panels.
struct Cut {
  int64_t rows;
  int64_t panels;
};

// About as much of x as fits the second-level cache while panels stream through. Fewer rows than
// kLeastTaskRows would read the panels too often.
constexpr int64_t kTaskInputBytes = 1 << 20;
constexpr int64_t kLeastTaskRows = 128;
constexpr int64_t kMostTaskRows = 512;
constexpr int64_t kMostTaskPanels = 24;
// From this many rows on, kernels copy a task's rows first (matmul_wide.inc). Few panels would not
// repay the copy, so tasks are as large as this number per thread allows.
constexpr int64_t kCopiedRows = 48;
constexpr int64_t kTasksPerThread = 8;

Cut CutProduct(int64_t m, int64_t n_panels, int64_t k, int64_t element_bytes, int n_threads) {
  const int64_t fitting =
      std::clamp(kTaskInputBytes / (k * element_bytes), kLeastTaskRows, kMostTaskRows);
  const int64_t row_tasks = (m + fitting - 1) / fitting;
  const int64_t rows = RoundUp<int64_t>((m + row_tasks - 1) / row_tasks, 8);
  // Several tasks per thread, each large enough to start. Six panels are whole register tiles in
  // every table.
  const int64_t least = std::max<int64_t>(1, kWorkPerTask / (std::min(m, rows) * k * kLanes));
  const int64_t most = std::max(least, kMostTaskPanels);
  const int64_t shared = m < kCopiedRows ? 0 : n_panels * row_tasks / (kTasksPerThread * n_threads);
  const int64_t wanted = std::max(n_panels / 32, shared);
  return {rows, RoundUp<int64_t>(std::clamp(wanted, least, most), 6)};
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows that kernels copy at a time, and the panels that one copy serves (matmul_wide.inc). A copy
// of few rows costs no more per product, but one for few panels does, so rows are cut first.
constexpr int64_t kWideTaskRows = 256;
constexpr int64_t kWideLeastTaskRows = 64;
constexpr int64_t kWideTaskPanels = 48;

// CutProduct for kCopiedRows rows and more.
Cut CutWideProduct(int64_t m, int64_t n_panels, int64_t k, int n_threads) {
  const int64_t wanted = kTasksPerThread * n_threads;
  int64_t panel_tasks = CeilDiv(n_panels, kWideTaskPanels);
  const int64_t least_row_tasks = CeilDiv(m, kWideTaskRows);
  const int64_t most_row_tasks = std::max(least_row_tasks, m / kWideLeastTaskRows);
  const int64_t row_tasks =
      std::clamp(CeilDiv(wanted, panel_tasks), least_row_tasks, most_row_tasks);
  panel_tasks = std::max(panel_tasks, CeilDiv(wanted, row_tasks));
  const int64_t rows = RoundUp<int64_t>(CeilDiv(m, row_tasks), 8);
  const int64_t least = std::max<int64_t>(1, kWorkPerTask / (rows * k * kLanes));
  return {rows, RoundUp<int64_t>(std::max(least, CeilDiv(n_panels, panel_tasks)), 6)};
}

template <class T>
void MatMulTyped(OpsContext& ops, const ConstMatrix& x, const PanelMatrix& w, const float* bias,
                 float* y, int64_t ldy) {
  const int64_t k = RowStride(w.dtype, w.k);
  const int64_t n_panels = PanelsOf(w.n);
  const bool wide = x.rows >= kCopiedRows;
  const int n_threads = ops.pool().n_threads();
  const Cut cut = wide ? CutWideProduct(x.rows, n_panels, k, n_threads)
                       : CutProduct(x.rows, n_panels, k, sizeof(T), n_threads);
  const int64_t panel_tasks = (n_panels + cut.panels - 1) / cut.panels;
  const int64_t row_tasks = (x.rows + cut.rows - 1) / cut.rows;
  const auto run = [&](int64_t index, int) {
    // With many rows, tasks of the same panels follow one another: panels come from memory once.
    const int64_t m = (wide ? index % row_tasks : index / panel_tasks) * cut.rows;
    const int64_t panel = (wide ? index / row_tasks : index % panel_tasks) * cut.panels;
    ops.kernels().typed<T>().matmul(PanelProduct<T>(
        w, static_cast<const T*>(x.data) + m * x.stride, x.stride, std::min(cut.rows, x.rows - m),
        panel, cut.panels, bias, y + m * ldy + panel * kLanes, ldy));
  };
  ParallelTrace::NoteWeights([&] { return PanelBytes(w.dtype, w.n, w.k); });
  ops.pool().ParallelFor(row_tasks * panel_tasks, std::cref(run));
}

// Rounds x into shared scratch first.
void MatMulBlocks(OpsContext& ops, const ConstMatrix& x, const PanelMatrix& w, const float* bias,
                  float* y, int64_t ldy) {
  const BlockKernels& kernels = *ops.kernels().blocks;
  std::byte* scratch = ops.SharedScratch(static_cast<size_t>(x.rows * BlockRows::BytesPerRow(w.k)));
  const BlockRows integers(scratch, x.rows, w);
  const auto quantize = [&](int64_t first, int64_t count, int) {
    integers.Quantize(kernels, static_cast<const Bf16*>(x.data) + first * x.stride, x.stride, first,
                      count);
  };
  ParallelRows(ops, x.rows, w.k / 4, quantize);

  const auto matmul = kernels.matmul(w.block);
  const int64_t n_panels = PanelsOf(w.n);
  const Cut cut = CutProduct(x.rows, n_panels, GroupsOf(w.k) * kGroupSize, sizeof(int8_t),
                             ops.pool().n_threads());
  const int64_t panel_tasks = (n_panels + cut.panels - 1) / cut.panels;
  const int64_t row_tasks = (x.rows + cut.rows - 1) / cut.rows;
  const auto run = [&](int64_t index, int) {
    const int64_t m = index / panel_tasks * cut.rows;
    const int64_t panel = index % panel_tasks * cut.panels;
    matmul(integers.Product(w, m, std::min(cut.rows, x.rows - m), panel, cut.panels, bias,
                            y + m * ldy + panel * kLanes, ldy));
  };
  ParallelTrace::NoteWeights([&] { return PanelBytes(w.block, w.n, w.k); });
  ops.pool().ParallelFor(row_tasks * panel_tasks, std::cref(run));
}

// dx = dy . W is a product over the panels of W's transpose, made piece by piece. A task owns some
// rows and inputs of dx, walks n in order, and transposes kGradDepth rows of W at a time.
constexpr int64_t kGradDepth = 512;
constexpr int64_t kGradRows = 512;
constexpr int64_t kGradInputs = 288;  // 18 panels: whole register tiles in every table

// `transpose(n, rows, k_first, columns, out)` writes the panels of W's transpose for rows
// [n, n + rows) of W and inputs [k_first, k_first + columns).
template <class T, class Transpose>
void InputGradBy(OpsContext& ops, const ConstMatrix& dy, const PanelMatrix& w, DType dtype,
                 float* dx, int64_t lddx, bool accumulate, const Transpose& transpose) {
  const TypedKernels<T>& kernels = ops.kernels().typed<T>();
  const int64_t depth = RowStride(dtype, w.n);  // padded rows of W, like dy's columns
  const int64_t row_tasks = (dy.rows + kGradRows - 1) / kGradRows;
  const int64_t input_tasks = (w.k + kGradInputs - 1) / kGradInputs;
  ReserveWorkerScratch(ops, static_cast<size_t>(InputGradScratch(dtype).worker));
  const auto run = [&](int64_t index, int worker) {
    const int64_t m = index / input_tasks * kGradRows;
    const int64_t k_first = index % input_tasks * kGradInputs;
    const int64_t columns = std::min(kGradInputs, w.k - k_first);
    T* transposed = reinterpret_cast<T*>(ops.WorkerScratch(worker, 0));
    for (int64_t n = 0; n < depth; n += kGradDepth) {
      const int64_t here = std::min(kGradDepth, depth - n);
      transpose(n, here, k_first, columns, transposed);
      kernels.matmul({.x = static_cast<const T*>(dy.data) + m * dy.stride + n,
                      .ldx = dy.stride,
                      .m = std::min(kGradRows, dy.rows - m),
                      .panels = transposed,
                      .n_panels = PanelsOf(columns),
                      .n_columns = columns,
                      .k = here,
                      .bias = nullptr,
                      .y = dx + m * lddx + k_first,
                      .ldy = lddx,
                      .accumulate = accumulate || n > 0});
    }
  };
  ops.pool().ParallelFor(row_tasks * input_tasks, std::cref(run));
}

template <class T>
void InputGradTyped(OpsContext& ops, const ConstMatrix& dy, const PanelMatrix& w, float* dx,
                    int64_t lddx, bool accumulate) {
  const TypedKernels<T>& kernels = ops.kernels().typed<T>();
  const int64_t k = RowStride(w.dtype, w.k);
  const auto transpose = [&](int64_t n, int64_t rows, int64_t k_first, int64_t, T* out) {
    kernels.transpose_panels({.panels = reinterpret_cast<const T*>(w.panels) + n * k,
                              .rows = rows,
                              .k = k,
                              .k_first = k_first,
                              .k_count = std::min(kGradInputs, k - k_first),
                              .out = out});
  };
  InputGradBy<T>(ops, dy, w, w.dtype, dx, lddx, accumulate, transpose);
}

// InputGrad for a weight in blocks: widens W's transpose to bf16 piece by piece. Only a task's
// piece of W exists in bf16 at a time.
void InputGradBlocks(OpsContext& ops, const ConstMatrix& dy, const PanelMatrix& w, float* dx,
                     int64_t lddx, bool accumulate) {
  static_assert(kGradInputs % kGroupSize == 0 && kGradDepth % kLanes == 0);
  const int64_t panel_bytes = BlockPanelBytes(w.block, w.k);
  const auto transpose = [&](int64_t n, int64_t rows, int64_t k_first, int64_t columns, Bf16* out) {
    for (int64_t row = 0; row < rows; row += kLanes) {
      for (int64_t k = 0; k < columns; k += kGroupSize) {
        TransposeGroup(w.block, w.panels + (n + row) / kLanes * panel_bytes, w.k,
                       (k_first + k) / kGroupSize, std::min(kLanes, rows - row) / 2,
                       columns - k > kLanes ? 2 : 1, out + k * rows + row * kLanes, rows * kLanes);
      }
    }
  };
  InputGradBy<Bf16>(ops, dy, w, DType::kBF16, dx, lddx, accumulate, transpose);
}

// dw = dy^T . x: the sum runs over the rows. x is packed once, as panels over blocks of rows. A
// task owns some outputs and inputs of dw, walks the blocks in order and transposes its columns of
// dy.
constexpr int64_t kSumRows = 1024;
constexpr int64_t kGradOutputs = 256;
constexpr int64_t kLeastGradOutputs = 128;
// Stride of the transposed dy, one cache line more than a power of two: at 2 KiB apart, rows would
// share a few sets of the first-level cache.
constexpr int64_t kSumStride = kSumRows + 32;

// The tile of one task: `rows` outputs by some panels of x. Few tasks would leave threads idle.
Cut CutWeightGrad(int64_t n, int64_t n_panels, int n_threads) {
  const int64_t outputs = std::clamp(RoundUp(CeilDiv(n, kTasksPerThread * n_threads), kLanes),
                                     kLeastGradOutputs, kGradOutputs);
  const int64_t output_tasks = CeilDiv(n, outputs);
  if (output_tasks >= 3 * n_threads) return {outputs, n_panels};
  const int64_t panel_tasks = CeilDiv(3 * n_threads, output_tasks);
  const int64_t panels = std::max<int64_t>(CeilDiv(n_panels, panel_tasks), 12);
  return {outputs, std::min(n_panels, RoundUp<int64_t>(panels, 6))};
}

template <class T>
void WeightGradTyped(OpsContext& ops, const ConstMatrix& dy, const ConstMatrix& x, float* dw,
                     bool accumulate) {
  const TypedKernels<T>& kernels = ops.kernels().typed<T>();
  const int64_t n = dy.cols;
  const int64_t k = x.cols;
  const int64_t pair = PairOf(x.dtype);
  const int64_t n_panels = PanelsOf(k);
  const int64_t n_blocks = (x.rows + kSumRows - 1) / kSumRows;
  const int64_t block_elements = kSumRows * n_panels * kLanes;
  const ScratchBytes scratch = WeightGradScratch(x.dtype, x.rows, k);
  T* packed = reinterpret_cast<T*>(ops.SharedScratch(static_cast<size_t>(scratch.shared)));
  constexpr int64_t kPackPanels = 8;
  const int64_t pack_tasks = (n_panels + kPackPanels - 1) / kPackPanels;
  const auto pack = [&](int64_t index, int) {
    const int64_t block = index / pack_tasks;
    const int64_t panel = index % pack_tasks * kPackPanels;
    const int64_t rows = std::min(kSumRows, x.rows - block * kSumRows);
    const int64_t column = panel * kLanes;
    kernels.pack_rows({.x = static_cast<const T*>(x.data) + block * kSumRows * x.stride + column,
                       .ldx = x.stride,
                       .rows = rows,
                       .cols = std::min(kPackPanels * kLanes, k - column),
                       .out = packed + block * block_elements + column * RoundUp(rows, pair)});
  };
  ops.pool().ParallelFor(n_blocks * pack_tasks, std::cref(pack));

  ReserveWorkerScratch(ops, static_cast<size_t>(scratch.worker));
  const Cut cut = CutWeightGrad(n, n_panels, ops.pool().n_threads());
  const int64_t panel_tasks = CeilDiv(n_panels, cut.panels);
  const auto run = [&](int64_t index, int worker) {
    const int64_t first = index / panel_tasks * cut.rows;
    const int64_t panel = index % panel_tasks * cut.panels;
    const int64_t outputs = std::min(cut.rows, n - first);
    T* transposed = reinterpret_cast<T*>(ops.WorkerScratch(worker, 0));
    for (int64_t block = 0; block < n_blocks; ++block) {
      const int64_t rows = std::min(kSumRows, x.rows - block * kSumRows);
      kernels.transpose_rows(
          {.x = static_cast<const T*>(dy.data) + block * kSumRows * dy.stride + first,
           .ldx = dy.stride,
           .rows = rows,
           .cols = outputs,
           .out = transposed,
           .ldout = kSumStride});
      kernels.matmul(
          {.x = transposed,
           .ldx = kSumStride,
           .m = outputs,
           .panels = packed + block * block_elements + panel * kLanes * RoundUp(rows, pair),
           .n_panels = std::min(cut.panels, n_panels - panel),
           .n_columns = std::min(cut.panels * kLanes, k - panel * kLanes),
           .k = RoundUp(rows, pair),
           .bias = nullptr,
           .y = dw + first * k + panel * kLanes,
           .ldy = k,
           .accumulate = accumulate || block > 0});
    }
  };
  ops.pool().ParallelFor(CeilDiv(n, cut.rows) * panel_tasks, std::cref(run));
}

}  // namespace

ScratchBytes BlockMatMulScratch(int64_t rows, int64_t k) {
  return {.shared = rows * BlockRows::BytesPerRow(k), .worker = 0};
}

ScratchBytes InputGradScratch(DType dtype) {
  return {.shared = 0,
          .worker = kGradDepth * kGradInputs * static_cast<int64_t>(DTypeBytes(dtype))};
}

ScratchBytes WeightGradScratch(DType dtype, int64_t rows, int64_t k) {
  const auto width = static_cast<int64_t>(DTypeBytes(dtype));
  const int64_t n_blocks = (rows + kSumRows - 1) / kSumRows;
  return {.shared = n_blocks * kSumRows * PanelsOf(k) * kLanes * width,
          .worker = kGradOutputs * kSumStride * width};
}

int64_t RowStride(DType dtype, int64_t cols) { return RoundUp(cols, PairOf(dtype)); }

int64_t PanelBytes(DType dtype, int64_t n, int64_t k) {
  const int64_t elements = CheckedMul(PanelsOf(n) * kLanes, RowStride(dtype, k), "panel elements");
  return CheckedMul(elements, static_cast<int64_t>(DTypeBytes(dtype)), "panel bytes");
}

int64_t PanelBytes(BlockFormat block, int64_t n, int64_t k) {
  return CheckedMul(PanelsOf(n), BlockPanelBytes(block, k), "panel bytes");
}

void MatMul(OpsContext& ops, const ConstMatrix& x, const PanelMatrix& w, const float* bias,
            float* y, int64_t ldy) {
  TANDEM_CHECK(x.dtype == w.dtype && x.cols == w.k);
  if (x.rows == 0) return;
  if (w.block != BlockFormat::kNone) {
    TANDEM_CHECK(x.dtype == DType::kBF16);
    MatMulBlocks(ops, x, w, bias, y, ldy);
    return;
  }
  WithComputeType(w.dtype, [&]<class T>() { MatMulTyped<T>(ops, x, w, bias, y, ldy); });
}

void MatMulInputGrad(OpsContext& ops, const ConstMatrix& dy, const PanelMatrix& w, float* dx,
                     int64_t lddx, bool accumulate) {
  TANDEM_CHECK(dy.dtype == w.dtype && dy.cols == w.n);
  if (dy.rows == 0) return;
  if (w.block != BlockFormat::kNone) {
    TANDEM_CHECK(dy.dtype == DType::kBF16);
    InputGradBlocks(ops, dy, w, dx, lddx, accumulate);
    return;
  }
  WithComputeType(w.dtype, [&]<class T>() { InputGradTyped<T>(ops, dy, w, dx, lddx, accumulate); });
}

void MatMulWeightGrad(OpsContext& ops, const ConstMatrix& dy, const ConstMatrix& x, float* dw,
                      bool accumulate) {
  TANDEM_CHECK(dy.dtype == x.dtype && dy.rows == x.rows);
  if (dy.rows == 0) {
    if (!accumulate) std::fill_n(dw, dy.cols * x.cols, 0.0f);
    return;
  }
  WithComputeType(x.dtype, [&]<class T>() { WeightGradTyped<T>(ops, dy, x, dw, accumulate); });
}

}  // namespace tandem::engine
