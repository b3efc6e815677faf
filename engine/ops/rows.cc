#include "engine/ops/rows.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/parallel.h"

namespace tandem::engine {
namespace {

template <class T>
void CheckOutput(const Matrix& y) {
  TANDEM_CHECK(y.stride >= RowStride(y.dtype, y.cols) || y.rows <= 1);
}

// Runs one pointwise kernel over row ranges. Dense f32 rows are treated as one long row, which
// avoids short tails.
template <class T>
void Pointwise(OpsContext& ops, void (*kernel)(const PointwiseArgs<T>&) noexcept, const float* x,
               const float* up, int64_t ldx, Activation activation, const Matrix& y) {
  CheckOutput<T>(y);
  T* out = static_cast<T*>(y.data);
  const bool one_row = ldx == y.cols && y.stride == y.cols;
  const int64_t rows = one_row ? 1 : y.rows;
  const int64_t cols = one_row ? y.rows * y.cols : y.cols;
  if (rows == 1) {
    ParallelRanges(ops, cols, kElementsPerTask, [&](int64_t first, int64_t count, int) {
      kernel({.x = x + first,
              .up = up == nullptr ? nullptr : up + first,
              .ldx = 0,
              .rows = 1,
              .cols = count,
              .activation = activation,
              .y = out + first,
              .ldy = 0});
    });
    return;
  }
  ParallelRows(ops, rows, cols, [&](int64_t first, int64_t count, int) {
    kernel({.x = x + first * ldx,
            .up = up == nullptr ? nullptr : up + first * ldx,
            .ldx = ldx,
            .rows = count,
            .cols = cols,
            .activation = activation,
            .y = out + first * y.stride,
            .ldy = y.stride});
  });
}

}  // namespace

RopeTable::RopeTable(std::span<const double> frequencies, int64_t max_positions, double amplitude,
                     RopeForm form)
    : frequencies_(frequencies.begin(), frequencies.end()),
      amplitude_(amplitude),
      rotary_dim_(2 * static_cast<int64_t>(frequencies.size())),
      form_(form),
      max_positions_(max_positions),
      rows_(std::make_unique<Rows>(static_cast<size_t>(rotary_dim_ * max_positions) *
                                   sizeof(float))) {
  if (form_.head_dim == 0) form_.head_dim = rotary_dim_;
  TANDEM_CHECK(rotary_dim_ <= form_.head_dim);
}

const float* RopeTable::RowsOf(std::span<const int32_t> positions) const {
  int64_t n_needed = 0;
  for (const int32_t position : positions) {
    TANDEM_CHECK(position >= 0 && position < max_positions_);
    n_needed = std::max<int64_t>(n_needed, position + 1);
  }
  auto* values = rows_->values.as<float>();
  if (rows_->n_filled.load(std::memory_order_acquire) >= n_needed) return values;

  const std::lock_guard lock(rows_->filling);
  const int64_t half = rotary_dim_ / 2;
  // Fills some extra rows, so that a growing sequence does not come here for every token.
  const int64_t end = std::min(max_positions_, RoundUp<int64_t>(n_needed, 64));
  for (int64_t p = rows_->n_filled.load(); p < end; ++p) {
    float* row = values + p * rotary_dim_;
    const auto period = static_cast<double>((p + form_.growth_shift) / form_.growth_period);
    const double amplitude = amplitude_ * (1 + form_.growth * std::log(1 + period));
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * frequencies_[static_cast<size_t>(i)];
      row[i] = static_cast<float>(amplitude * std::cos(angle));
      row[half + i] = static_cast<float>(amplitude * std::sin(angle));
    }
  }
  if (end > rows_->n_filled.load()) rows_->n_filled.store(end, std::memory_order_release);
  return values;
}

void RmsNorm(OpsContext& ops, const float* x, int64_t ldx, const float* gamma, float eps,
             const Matrix& y, float* rstd) {
  WithComputeType(y.dtype, [&]<class T>() {
    CheckOutput<T>(y);
    ParallelRows(ops, y.rows, y.cols, [&](int64_t first, int64_t count, int) {
      ops.kernels().typed<T>().rms_norm({.x = x + first * ldx,
                                         .ldx = ldx,
                                         .rows = count,
                                         .cols = y.cols,
                                         .gamma = gamma,
                                         .beta = nullptr,
                                         .eps = eps,
                                         .y = static_cast<T*>(y.data) + first * y.stride,
                                         .ldy = y.stride,
                                         .stats = rstd == nullptr ? nullptr : rstd + first});
    });
  });
}

void RmsNormRuns(OpsContext& ops, const float* x, const float* gamma, int64_t length, float eps,
                 const Matrix& y, float* rstd) {
  TANDEM_CHECK(y.dtype == DType::kF32 && y.stride == y.cols && y.cols % length == 0);
  const int64_t runs = y.rows * (y.cols / length);
  RmsNorm(ops, x, length, gamma, eps, {y.data, y.dtype, runs, length, length}, rstd);
}

void LayerNorm(OpsContext& ops, const float* x, int64_t ldx, const float* gamma, const float* beta,
               float eps, const Matrix& y, float* mean_rstd) {
  WithComputeType(y.dtype, [&]<class T>() {
    CheckOutput<T>(y);
    ParallelRows(ops, y.rows, y.cols, [&](int64_t first, int64_t count, int) {
      ops.kernels().typed<T>().layer_norm(
          {.x = x + first * ldx,
           .ldx = ldx,
           .rows = count,
           .cols = y.cols,
           .gamma = gamma,
           .beta = beta,
           .eps = eps,
           .y = static_cast<T*>(y.data) + first * y.stride,
           .ldy = y.stride,
           .stats = mean_rstd == nullptr ? nullptr : mean_rstd + 2 * first});
    });
  });
}

void Rope(OpsContext& ops, const float* x, int64_t ldx, std::span<const int32_t> positions,
          const RopeTable& table, const Matrix& y) {
  TANDEM_CHECK(static_cast<int64_t>(positions.size()) == y.rows);
  TANDEM_CHECK(y.cols % table.head_dim() == 0);
  const float* rows = table.RowsOf(positions);
  WithComputeType(y.dtype, [&]<class T>() {
    CheckOutput<T>(y);
    ParallelRows(ops, y.rows, y.cols, [&](int64_t first, int64_t count, int) {
      ops.kernels().typed<T>().rope({.x = x + first * ldx,
                                     .ldx = ldx,
                                     .rows = count,
                                     .n_heads = y.cols / table.head_dim(),
                                     .head_dim = table.head_dim(),
                                     .rotary_dim = table.rotary_dim(),
                                     .interleaved = table.interleaved(),
                                     .positions = positions.data() + first,
                                     .table = rows,
                                     .y = static_cast<T*>(y.data) + first * y.stride,
                                     .ldy = y.stride});
    });
  });
}

void GatedActivation(OpsContext& ops, const float* gate, const float* up, int64_t ld,
                     Activation activation, const Matrix& y) {
  WithComputeType(y.dtype, [&]<class T>() {
    Pointwise<T>(ops, ops.kernels().typed<T>().gated_activation, gate, up, ld, activation, y);
  });
}

void Activate(OpsContext& ops, const float* x, int64_t ldx, Activation activation,
              const Matrix& y) {
  TANDEM_CHECK(activation != Activation::kClampedSwiglu);  // has no form without `up`
  WithComputeType(y.dtype, [&]<class T>() {
    Pointwise<T>(ops, ops.kernels().typed<T>().activate, x, nullptr, ldx, activation, y);
  });
}

void AddRows(OpsContext& ops, const float* a, const float* b, int64_t elements, float* y) {
  ParallelRanges(ops, elements, kElementsPerTask, [&](int64_t first, int64_t count, int) {
    ops.kernels().add(a + first, b + first, count, y + first);
  });
}

void MultiplyRows(OpsContext& ops, const float* a, const float* b, int64_t elements, float* y) {
  ParallelRanges(ops, elements, kElementsPerTask, [&](int64_t first, int64_t count, int) {
    ops.kernels().multiply(a + first, b + first, count, y + first);
  });
}

void ClampRows(OpsContext& ops, const float* x, float limit, int64_t elements, float* y) {
  ParallelRanges(ops, elements, kElementsPerTask, [&](int64_t first, int64_t count, int) {
    ops.kernels().clamp(x + first, limit, count, y + first);
  });
}

void SigmoidRows(OpsContext& ops, const float* x, int64_t elements, float* y) {
  ParallelRanges(ops, elements, kElementsPerTask, [&](int64_t first, int64_t count, int) {
    ops.kernels().sigmoid(x + first, count, y + first);
  });
}

void ScaleRows(OpsContext& ops, const float* x, float factor, int64_t elements, float* y) {
  ParallelRanges(ops, elements, kElementsPerTask, [&](int64_t first, int64_t count, int) {
    ops.kernels().scale(x + first, factor, count, y + first);
  });
}

void SoftCapRows(OpsContext& ops, const float* x, float cap, int64_t elements, float* y) {
  ParallelRanges(ops, elements, kElementsPerTask, [&](int64_t first, int64_t count, int) {
    ops.kernels().soft_cap(x + first, cap, count, y + first);
  });
}

void SoftCap(OpsContext& ops, float cap, int64_t elements, float* x) {
  SoftCapRows(ops, x, cap, elements, x);
}

void RoundRows(OpsContext& ops, const float* x, int64_t ldx, const Matrix& y) {
  WithComputeType(y.dtype, [&]<class T>() {
    Pointwise<T>(ops, ops.kernels().typed<T>().round, x, nullptr, ldx, Activation::kRelu, y);
  });
}

}  // namespace tandem::engine
