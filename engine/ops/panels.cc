#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/lane_panels.h"
#include "engine/ops/matmul.h"
#include "engine/ops/parallel.h"

// Packs and unpacks panels: movement and one rounding, no arithmetic.
namespace tandem::engine {
namespace {

template <class T>
constexpr int64_t kPair = static_cast<int64_t>(sizeof(float) / sizeof(T));

void Convert(float from, float* to) { *to = from; }
void Convert(float from, Bf16* to) { *to = FloatToBf16(from); }

// Reads one run of a source tensor as f32.
void ReadRun(const ConstTensorView& source, int64_t first, int64_t count, float* out) {
  const size_t bytes = DTypeBytes(source.dtype);
  ConstTensorView run{.data = source.data + static_cast<size_t>(first) * bytes,
                      .dtype = source.dtype,
                      .shape = {count}};
  ConvertToF32(run, {out, static_cast<size_t>(count)});
}

constexpr int64_t kRun = 256;  // values converted at a time: k of one row, or n of one k

// One panel: rows [16 * panel, 16 * panel + 16) of W.
template <class T>
void PackPanel(const ConstTensorView& source, SourceLayout layout, int64_t n, int64_t k,
               int64_t panel, T* out) {
  constexpr int64_t kSide = kPair<T>;
  const int64_t padded = RoundUp(k, kSide);
  const int64_t lanes = std::min(kLanes, n - panel * kLanes);
  std::memset(out, 0, static_cast<size_t>(padded * kLanes) * sizeof(T));
  float run[kRun];
  if (layout == SourceLayout::kInOut) {
    for (int64_t i = 0; i < k; ++i) {
      ReadRun(source, i * n + panel * kLanes, lanes, run);
      T* to = out + i / kSide * kSide * kLanes + i % kSide;
      for (int64_t lane = 0; lane < lanes; ++lane) Convert(run[lane], to + lane * kSide);
    }
    return;
  }
  for (int64_t first = 0; first < k; first += kRun) {
    const int64_t count = std::min(kRun, k - first);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      ReadRun(source, (panel * kLanes + lane) * k + first, count, run);
      T* to = out + first * kLanes + lane * kSide;
      for (int64_t i = 0; i < count; ++i) {
        Convert(run[i], to + i / kSide * kSide * kLanes + i % kSide);
      }
    }
  }
}

// Element (row, i) of panels.
template <class T>
const T* PanelAt(const PanelMatrix& w, int64_t row, int64_t i) {
  const int64_t padded = RoundUp(w.k, kPair<T>);
  return reinterpret_cast<const T*>(w.panels) + row / kLanes * padded * kLanes +
         i / kPair<T> * kPair<T> * kLanes + row % kLanes * kPair<T> + i % kPair<T>;
}

float Widen(float x) { return x; }
float Widen(Bf16 x) { return Bf16ToFloat(x); }

template <class T>
void ReadRow(const PanelMatrix& w, int64_t row, float* out) {
  for (int64_t i = 0; i < w.k; ++i) out[i] = Widen(*PanelAt<T>(w, row, i));
}

// Reads sixteen rows of W, up to kRun inputs from `first` on; elements outside W are zero.
void ReadRows(const ConstTensorView& source, SourceLayout layout, int64_t n, int64_t k,
              int64_t panel, int64_t first, float (&rows)[kLanes][kRun]) {
  std::memset(rows, 0, sizeof(rows));
  const int64_t lanes = std::min(kLanes, n - panel * kLanes);
  const int64_t count = std::min(kRun, k - first);
  if (layout == SourceLayout::kOutIn) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      ReadRun(source, (panel * kLanes + lane) * k + first, count, rows[lane]);
    }
    return;
  }
  float run[kLanes];
  for (int64_t i = 0; i < count; ++i) {
    ReadRun(source, (first + i) * n + panel * kLanes, lanes, run);
    for (int64_t lane = 0; lane < lanes; ++lane) rows[lane][i] = run[lane];
  }
}

BlockError ErrorOf(const BlockGroup& rounded, const float* values) {
  const float scale = F16ToFloat(rounded.scale);
  float squared_error = 0;
  float squared = 0;
  float max_abs = 0;
  for (int64_t i = 0; i < kGroupSize; ++i) {
    const float error = scale * static_cast<float>(rounded.q[i]) - values[i];
    squared_error += error * error;
    squared += values[i] * values[i];
    max_abs = std::max(max_abs, std::abs(error));
  }
  return {squared_error, squared, max_abs};
}

// One panel of blocks. REQUIRES: zeroed beyond the scales.
BlockError PackBlockPanel(const ConstTensorView& source, SourceLayout layout, int64_t n, int64_t k,
                          int64_t panel, BlockFormat block, std::byte* out) {
  BlockError error;
  float rows[kLanes][kRun];
  for (int64_t first = 0; first < k; first += kRun) {
    ReadRows(source, layout, n, k, panel, first, rows);
    const int64_t groups = GroupsOf(std::min(kRun, k - first));
    for (int64_t group = 0; group < groups; ++group) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const float* values = rows[lane] + group * kGroupSize;
        const BlockGroup rounded = QuantizeGroup(block, values);
        PutGroup(block, out, k, first / kGroupSize + group, lane, rounded);
        error.Add(ErrorOf(rounded, values));
      }
    }
  }
  return error;
}

// Row `row` of a weight in blocks.
void ReadBlockRow(const PanelMatrix& w, int64_t row, float* out) {
  const std::byte* panel = w.panels + row / kLanes * BlockPanelBytes(w.block, w.k);
  for (int64_t first = 0; first < w.k; first += kGroupSize) {
    float values[kGroupSize];
    DequantizeGroup(w.block, panel, w.k, first / kGroupSize, row % kLanes, values);
    std::copy_n(values, std::min(kGroupSize, w.k - first), out + first);
  }
}

// Calls f(row, out) with the reader for the weight's format.
template <class F>
void WithRowReader(const PanelMatrix& w, const F& f) {
  if (w.block != BlockFormat::kNone) {
    f([&](int64_t row, float* out) { ReadBlockRow(w, row, out); });
    return;
  }
  WithComputeType(w.dtype,
                  [&]<class T>() { f([&](int64_t row, float* out) { ReadRow<T>(w, row, out); }); });
}

}  // namespace

void BlockError::Add(const BlockError& other) {
  squared_error += other.squared_error;
  squared += other.squared;
  max_abs = std::max(max_abs, other.max_abs);
}

double BlockError::Relative() const {
  return squared > 0 ? std::sqrt(squared_error / squared) : std::sqrt(squared_error);
}

BlockError PackBlockPanels(OpsContext& ops, const ConstTensorView& source, SourceLayout layout,
                           int64_t n, int64_t k, BlockFormat block, std::byte* panels) {
  TANDEM_CHECK(source.elements() == CheckedMul(n, k, "weight elements"));
  // An unsupported source fails here, on the calling thread, because tasks must not throw.
  ConvertToF32({.data = source.data, .dtype = source.dtype, .shape = {0}}, {});
  const int64_t n_panels = (n + kLanes - 1) / kLanes;
  const int64_t panel_bytes = BlockPanelBytes(block, k);
  std::memset(panels, 0, static_cast<size_t>(n_panels * panel_bytes));
  std::vector<BlockError> errors(static_cast<size_t>(n_panels));
  const auto pack = [&](int64_t first, int64_t count, int) {
    for (int64_t p = first; p < first + count; ++p) {
      errors[static_cast<size_t>(p)] =
          PackBlockPanel(source, layout, n, k, p, block, panels + p * panel_bytes);
    }
  };
  ParallelRows(ops, n_panels, k * kLanes, pack);
  BlockError total;
  for (const BlockError& error : errors) total.Add(error);
  return total;
}

BlockError PackQ4K(OpsContext& ops, const std::function<const std::byte*(int64_t row)>& row_data,
                   int64_t n, int64_t k, std::byte* panels) {
  if (!FitsBlocks(BlockFormat::kInt4K, k)) {
    throw Error(ErrorCode::kUnsupported,
                "q4_k needs a number of inputs per row that is a multiple of " +
                    std::to_string(kSuperSize) + ", got " + std::to_string(k));
  }
  const int64_t n_panels = (n + kLanes - 1) / kLanes;
  const int64_t panel_bytes = BlockPanelBytes(BlockFormat::kInt4K, k);
  std::memset(panels, 0, static_cast<size_t>(n_panels * panel_bytes));
  std::atomic<bool> finite = true;
  const auto pack = [&](int64_t first, int64_t count, int) {
    for (int64_t row = first * kLanes; row < std::min(n, (first + count) * kLanes); ++row) {
      const std::byte* from = row_data(row);
      for (int64_t b = 0; b < k / kSuperSize; ++b, from += kQ4KBytes) {
        PutQ4K(panels + row / kLanes * panel_bytes, k, b, row % kLanes, from);
        uint16_t numbers[2];
        std::memcpy(numbers, from, sizeof(numbers));
        for (const uint16_t number : numbers) {
          if (!std::isfinite(F16ToFloat(number))) finite = false;
        }
      }
    }
  };
  ParallelRows(ops, n_panels, k * kLanes, pack);
  return {.squared_error = finite ? 0 : INFINITY};
}

void PackPanels(OpsContext& ops, const ConstTensorView& source, SourceLayout layout, int64_t n,
                int64_t k, DType dtype, std::byte* panels) {
  TANDEM_CHECK(source.elements() == CheckedMul(n, k, "weight elements"));
  WithComputeType(dtype, [&]<class T>() {
    // An unsupported source fails here, on the calling thread, because tasks must not throw.
    ConvertToF32({.data = source.data, .dtype = source.dtype, .shape = {0}}, {});
    const bool only_moves = source.dtype == dtype && layout == SourceLayout::kOutIn &&
                            reinterpret_cast<uintptr_t>(source.data) % alignof(T) == 0;
    const int64_t elements = RoundUp(k, kPair<T>) * kLanes;
    const auto pack = [&](int64_t first, int64_t count, int) {
      T* out = reinterpret_cast<T*>(panels) + first * elements;
      if (only_moves) {
        const int64_t row = first * kLanes;
        PackLanes(ops.kernels(), reinterpret_cast<const T*>(source.data) + row * k, k,
                  std::min(n - row, count * kLanes), k, out);
        return;
      }
      for (int64_t p = first; p < first + count; ++p, out += elements) {
        PackPanel<T>(source, layout, n, k, p, out);
      }
    };
    ParallelRows(ops, (n + kLanes - 1) / kLanes, elements, pack);
  });
}

void UnpackPanels(const PanelMatrix& w, float* out) {
  WithRowReader(w, [&](const auto& read) {
    for (int64_t row = 0; row < w.n; ++row) read(row, out + row * w.k);
  });
}

void GatherRows(OpsContext& ops, const PanelMatrix& table, std::span<const TokenId> ids, float* out,
                int64_t ldout) {
  WithRowReader(table, [&](const auto& read) {
    const auto gather = [&](int64_t first, int64_t count, int) {
      for (int64_t i = first; i < first + count; ++i) {
        const TokenId id = ids[static_cast<size_t>(i)];
        TANDEM_DCHECK(id >= 0);
        read(id < table.n ? id : 0, out + i * ldout);
      }
    };
    ParallelRows(ops, static_cast<int64_t>(ids.size()), table.k, gather);
  });
}

}  // namespace tandem::engine
