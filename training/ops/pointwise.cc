#include "training/ops/pointwise.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/kernels/training_kernels.h"
#include "engine/ops/parallel.h"

namespace tandem::training {
namespace {

using engine::OpsContext;

constexpr int64_t kElementsPerTask = 1 << 15;
constexpr int64_t kRowsPerTask = 32;
constexpr int64_t kColumnsPerTask = 256;

// Calls run(first, count) over ranges of elements.
template <class Run>
void OverElements(OpsContext& ops, int64_t elements, const Run& run) {
  const int64_t n_tasks = (elements + kElementsPerTask - 1) / kElementsPerTask;
  ops.pool().ParallelFor(n_tasks, [&](int64_t task, int) {
    const int64_t first = task * kElementsPerTask;
    run(first, std::min(kElementsPerTask, elements - first));
  });
}

// Calls run(row) for every row.
template <class Run>
void OverRows(OpsContext& ops, int64_t rows, const Run& run) {
  const int64_t n_tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
  ops.pool().ParallelFor(n_tasks, [&](int64_t task, int) {
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) run(row);
  });
}

}  // namespace

void RopeBackward(OpsContext& ops, const float* dy, std::span<const int32_t> positions,
                  const engine::RopeTable& table, int64_t rows, int64_t cols, float* dx) {
  TANDEM_CHECK(static_cast<int64_t>(positions.size()) == rows);
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  const float* rotations = table.RowsOf(positions);
  OverRows(ops, rows, [&](int64_t row) {
    const float* cos = rotations + positions[static_cast<size_t>(row)] * table.rotary_dim();
    kernels.rope_backward({.dy = dy + row * cols,
                           .cos = cos,
                           .sin = cos + table.rotary_dim() / 2,
                           .n_heads = cols / table.head_dim(),
                           .head_dim = table.head_dim(),
                           .rotary_dim = table.rotary_dim(),
                           .interleaved = table.interleaved(),
                           .dx = dx + row * cols});
  });
}

void GatedActivationBackward(OpsContext& ops, const float* gate, const float* up,
                             engine::Activation activation, const float* dh, int64_t elements,
                             float* dgate, float* dup) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  OverElements(ops, elements, [&](int64_t first, int64_t count) {
    kernels.gated_backward({.gate = gate + first,
                            .up = up + first,
                            .dh = dh + first,
                            .elements = count,
                            .activation = activation,
                            .dgate = dgate + first,
                            .dup = dup + first});
  });
}

void ActivateBackward(OpsContext& ops, const float* x, engine::Activation activation,
                      const float* dy, int64_t elements, float* dx) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  OverElements(ops, elements, [&](int64_t first, int64_t count) {
    kernels.activate_backward({.x = x + first,
                               .dy = dy + first,
                               .elements = count,
                               .activation = activation,
                               .dx = dx + first});
  });
}

void MultiplyBackward(OpsContext& ops, const float* a, const float* b, const float* dy,
                      int64_t elements, float* da, float* db) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  OverElements(ops, elements, [&](int64_t first, int64_t count) {
    kernels.accumulate_product(dy + first, b + first, count, da + first);
    kernels.accumulate_product(dy + first, a + first, count, db + first);
  });
}

void ClampBackward(OpsContext& ops, const float* x, float limit, const float* dy, int64_t elements,
                   float* dx) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  OverElements(ops, elements, [&](int64_t first, int64_t count) {
    kernels.clamp_backward(x + first, limit, dy + first, count, dx + first);
  });
}

void SigmoidBackward(OpsContext& ops, const float* y, const float* dy, int64_t elements,
                     float* dx) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  OverElements(ops, elements, [&](int64_t first, int64_t count) {
    kernels.sigmoid_backward(y + first, dy + first, count, dx + first);
  });
}

void Accumulate(OpsContext& ops, const float* from, int64_t elements, float* into) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  OverElements(ops, elements, [&](int64_t first, int64_t count) {
    kernels.accumulate(from + first, count, into + first);
  });
}

void AccumulateScaled(OpsContext& ops, const float* from, float factor, int64_t elements,
                      float* into) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  OverElements(ops, elements, [&](int64_t first, int64_t count) {
    kernels.accumulate_scaled(from + first, factor, count, into + first);
  });
}

void AccumulateColumns(OpsContext& ops, const float* from, int64_t rows, int64_t cols, float* into,
                       int64_t ldinto) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  OverRows(ops, rows,
           [&](int64_t row) { kernels.accumulate(from + row * cols, cols, into + row * ldinto); });
}

void ColumnSums(OpsContext& ops, const float* dy, int64_t rows, int64_t cols, float* db) {
  // One task sums a column, row by row: no partial sums to combine.
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  const int64_t n_tasks = (cols + kColumnsPerTask - 1) / kColumnsPerTask;
  ops.pool().ParallelFor(n_tasks, [&](int64_t task, int) {
    const int64_t first = task * kColumnsPerTask;
    kernels.column_sums(dy + first, cols, rows, std::min(kColumnsPerTask, cols - first),
                        db + first);
  });
}

void EmbedBackward(OpsContext& ops, std::span<const TokenId> ids, const float* dy, int64_t cols,
                   int64_t n_rows, float* dtable) {
  const int64_t rows = static_cast<int64_t>(ids.size());
  if (rows == 0) return;
  // (id, row) in one integer: sorting groups equal ids and keeps their rows in order.
  uint64_t* order =
      reinterpret_cast<uint64_t*>(ops.SharedScratch(static_cast<size_t>(rows) * sizeof(uint64_t)));
  for (int64_t row = 0; row < rows; ++row) {
    const TokenId token = ids[static_cast<size_t>(row)];
    const auto id = static_cast<uint32_t>(token < n_rows ? token : 0);
    order[row] = (uint64_t{id} << 32) | static_cast<uint64_t>(row);
  }
  std::sort(order, order + rows);
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  // A task handles the ids that begin in its range, so that no two tasks share an id.
  const int64_t n_tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
  ops.pool().ParallelFor(n_tasks, [&](int64_t task, int) {
    int64_t at = task * kRowsPerTask;
    const int64_t end = std::min(rows, at + kRowsPerTask);
    while (at > 0 && at < end && order[at] >> 32 == order[at - 1] >> 32) ++at;
    while (at < end) {
      const uint64_t id = order[at] >> 32;
      float* into = dtable + static_cast<int64_t>(id) * cols;
      for (; at < rows && order[at] >> 32 == id; ++at) {
        const auto row = static_cast<int64_t>(order[at] & 0xffffffffu);
        kernels.accumulate(dy + row * cols, cols, into);
      }
    }
  });
}

void Dropout(OpsContext& ops, const float* x, std::span<const DropoutRow> rows, int64_t cols,
             float rate, const DropoutKey& key, float* y, bool accumulate) {
  TANDEM_CHECK(rate >= 0 && rate < 1);
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  OverRows(ops, static_cast<int64_t>(rows.size()), [&](int64_t row) {
    const DropoutRow& from = rows[static_cast<size_t>(row)];
    kernels.dropout({.x = x + row * cols,
                     .cols = cols,
                     .seed = key.seed,
                     .op = key.op,
                     .sample = from.sample,
                     .position = from.position,
                     .rate = rate,
                     .y = y + row * cols,
                     .accumulate = accumulate});
  });
}

void DropoutRounded(OpsContext& ops, const engine::ConstMatrix& x, std::span<const DropoutRow> rows,
                    float rate, const DropoutKey& key, const engine::Matrix& y) {
  TANDEM_CHECK(x.dtype == y.dtype && x.cols == y.cols);
  if (x.dtype == engine::DType::kF32) {
    TANDEM_CHECK(x.stride == x.cols && y.stride == y.cols);
    Dropout(ops, static_cast<const float*>(x.data), rows, x.cols, rate, key,
            static_cast<float*>(y.data), false);
    return;
  }
  TANDEM_CHECK(rate >= 0 && rate < 1);
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  engine::ReserveWorkerScratch(ops, static_cast<size_t>(x.cols) * sizeof(float));
  const auto n_rows = static_cast<int64_t>(rows.size());
  ops.pool().ParallelFor((n_rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int worker) {
    auto* wide = reinterpret_cast<float*>(ops.WorkerScratch(worker, 0));
    for (int64_t row = task * kRowsPerTask; row < std::min(n_rows, (task + 1) * kRowsPerTask);
         ++row) {
      const auto* from = static_cast<const engine::Bf16*>(x.data) + row * x.stride;
      for (int64_t c = 0; c < x.cols; ++c) wide[c] = engine::Bf16ToFloat(from[c]);
      const DropoutRow& source = rows[static_cast<size_t>(row)];
      kernels.dropout({.x = wide,
                       .cols = x.cols,
                       .seed = key.seed,
                       .op = key.op,
                       .sample = source.sample,
                       .position = source.position,
                       .rate = rate,
                       .y = wide,
                       .accumulate = false});
      ops.kernels().bf16.round({.x = wide,
                                .up = nullptr,
                                .ldx = x.cols,
                                .rows = 1,
                                .cols = x.cols,
                                .activation = engine::Activation::kSilu,
                                .y = static_cast<engine::Bf16*>(y.data) + row * y.stride,
                                .ldy = y.stride});
    }
  });
}

}  // namespace tandem::training
