#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/base/check.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/matmul.h"

namespace tandem::engine {

// Rows of activations as integers, for products with weights in blocks: q, scales, starts and
// (q4_k) sums, in one scratch buffer. Row strides exceed k by a cache line: at powers of two, rows
// would share a few cache sets.
class BlockRows {
 public:
  static int64_t BytesPerRow(int64_t k) {
    return StrideOf(k) +
           GroupStrideOf(k) * static_cast<int64_t>(2 * sizeof(float) + sizeof(int32_t));
  }

  // REQUIRES: scratch of rows * BytesPerRow(w.k) bytes.
  BlockRows(std::byte* scratch, int64_t rows, const PanelMatrix& w)
      : format_(w.block),
        k_(w.k),
        ldq_(StrideOf(w.k)),
        ldgroups_(GroupStrideOf(w.k)),
        q_(reinterpret_cast<int8_t*>(scratch)),
        scales_(reinterpret_cast<float*>(scratch + rows * ldq_)),
        starts_(reinterpret_cast<int32_t*>(scales_ + rows * ldgroups_)),
        sums_(reinterpret_cast<float*>(starts_ + rows * ldgroups_)) {}

  // Rounds rows of x into rows [first, first + count).
  void Quantize(const BlockKernels& kernels, const Bf16* x, int64_t ldx, int64_t first,
                int64_t count) const {
    kernels.quantize_rows({.x = x,
                           .ldx = ldx,
                           .rows = count,
                           .cols = k_,
                           .offset = BlockOffset(format_),
                           .q = q_ + first * ldq_,
                           .ldq = ldq_,
                           .scales = scales_ + first * ldgroups_,
                           .starts = starts_ + first * ldgroups_,
                           .sums = HasSums() ? sums_ + first * ldgroups_ : nullptr,
                           .ldgroups = ldgroups_});
  }

  // Copies a row of `from`, which has the same format and width.
  void CopyRow(const BlockRows& from, int64_t from_row, int64_t row) const {
    const auto bytes = static_cast<size_t>(ldgroups_) * sizeof(float);
    std::memcpy(q_ + row * ldq_, from.q_ + from_row * ldq_, static_cast<size_t>(ldq_));
    std::memcpy(scales_ + row * ldgroups_, from.scales_ + from_row * ldgroups_, bytes);
    std::memcpy(starts_ + row * ldgroups_, from.starts_ + from_row * ldgroups_, bytes);
    if (HasSums()) std::memcpy(sums_ + row * ldgroups_, from.sums_ + from_row * ldgroups_, bytes);
  }

  // The product of rows [row, row + m) with panels [panel, panel + n_panels) of w, cut at the
  // weight's end. y is the place of (row, first column of the range).
  BlockMatMulArgs Product(const PanelMatrix& w, int64_t row, int64_t m, int64_t panel,
                          int64_t n_panels, const float* bias, float* y, int64_t ldy) const {
    const int64_t column = panel * kLanes;
    const int64_t all = (w.n + kLanes - 1) / kLanes;
    return {.q = q_ + row * ldq_,
            .ldq = ldq_,
            .scales = scales_ + row * ldgroups_,
            .starts = starts_ + row * ldgroups_,
            .sums = HasSums() ? sums_ + row * ldgroups_ : nullptr,
            .ldgroups = ldgroups_,
            .m = m,
            .panels = w.panels + panel * BlockPanelBytes(w.block, w.k),
            .n_panels = std::min(n_panels, all - panel),
            .n_columns = std::min(n_panels * kLanes, w.n - column),
            .k = w.k,
            .bias = bias == nullptr ? nullptr : bias + column,
            .y = y,
            .ldy = ldy,
            .accumulate = false};
  }

 private:
  static int64_t StrideOf(int64_t k) { return RoundUp<int64_t>(GroupsOf(k) * kGroupSize, 64) + 64; }
  static int64_t GroupStrideOf(int64_t k) { return RoundUp<int64_t>(GroupsOf(k), 16) + 16; }
  bool HasSums() const { return format_ == BlockFormat::kInt4K; }

  BlockFormat format_;
  int64_t k_;
  int64_t ldq_;
  int64_t ldgroups_;
  int8_t* q_;
  float* scales_;
  int32_t* starts_;
  float* sums_;
};

// The product of m rows of x with panels [panel, panel + n_panels) of w, cut at the weight's end;
// `bias` is the weight's, y the place of (first row, first column of the range).
template <class T>
MatMulArgs<T> PanelProduct(const PanelMatrix& w, const T* x, int64_t ldx, int64_t m, int64_t panel,
                           int64_t n_panels, const float* bias, float* y, int64_t ldy) {
  const int64_t k = RowStride(w.dtype, w.k);
  const int64_t column = panel * kLanes;
  return {.x = x,
          .ldx = ldx,
          .m = m,
          .panels = reinterpret_cast<const T*>(w.panels) + column * k,
          .n_panels = std::min(n_panels, (w.n + kLanes - 1) / kLanes - panel),
          .n_columns = std::min(n_panels * kLanes, w.n - column),
          .k = k,
          .bias = bias == nullptr ? nullptr : bias + column,
          .y = y,
          .ldy = ldy,
          .accumulate = false};
}

}  // namespace tandem::engine
