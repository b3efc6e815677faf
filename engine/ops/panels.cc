#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/matmul.h"
#include "engine/ops/parallel.h"

// Panels in and out: movement and one rounding, no arithmetic.
namespace tandem::engine {
namespace {

template <class T>
constexpr int64_t kPair = static_cast<int64_t>(sizeof(float) / sizeof(T));

void Convert(float from, float* to) { *to = from; }
void Convert(float from, Bf16* to) { *to = FloatToBf16(from); }

// f32 values of one run of a source tensor.
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

// bf16 stored as [n, k] is only moved, a pair at a time.
void PackPanelOfPairs(const Bf16* source, int64_t n, int64_t k, int64_t panel, Bf16* out) {
  const int64_t lanes = std::min(kLanes, n - panel * kLanes);
  std::memset(out, 0, static_cast<size_t>(RoundUp<int64_t>(k, 2) * kLanes) * sizeof(Bf16));
  constexpr int64_t kBlock = 32;  // pairs: 4 KiB of panel written while 16 rows are read
  for (int64_t first = 0; first < k / 2; first += kBlock) {
    const int64_t end = std::min(k / 2, first + kBlock);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const Bf16* row = source + (panel * kLanes + lane) * k;
      for (int64_t i = first; i < end; ++i) {
        std::memcpy(out + (i * kLanes + lane) * 2, row + 2 * i, 2 * sizeof(Bf16));
      }
    }
  }
  if (k % 2 == 0) return;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    out[((k / 2) * kLanes + lane) * 2] = source[(panel * kLanes + lane) * k + k - 1];
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

}  // namespace

void PackPanels(OpsContext& ops, const ConstTensorView& source, SourceLayout layout, int64_t n,
                int64_t k, DType dtype, std::byte* panels) {
  TANDEM_CHECK(source.elements() == CheckedMul(n, k, "weight elements"));
  WithComputeType(dtype, [&]<class T>() {
    // An unsupported source fails here, on the calling thread: tasks must not throw.
    ConvertToF32({.data = source.data, .dtype = source.dtype, .shape = {0}}, {});
    const bool only_move = std::is_same_v<T, Bf16> && source.dtype == DType::kBF16 &&
                           layout == SourceLayout::kOutIn &&
                           reinterpret_cast<uintptr_t>(source.data) % alignof(Bf16) == 0;
    const int64_t elements = RoundUp(k, kPair<T>) * kLanes;
    const auto pack = [&](int64_t first, int64_t count, int) {
      for (int64_t p = first; p < first + count; ++p) {
        T* out = reinterpret_cast<T*>(panels) + p * elements;
        if constexpr (std::is_same_v<T, Bf16>) {
          if (only_move) {
            PackPanelOfPairs(reinterpret_cast<const Bf16*>(source.data), n, k, p, out);
            continue;
          }
        }
        PackPanel<T>(source, layout, n, k, p, out);
      }
    };
    ParallelRows(ops, (n + kLanes - 1) / kLanes, elements, pack);
  });
}

void UnpackPanels(const PanelMatrix& w, float* out) {
  WithComputeType(w.dtype, [&]<class T>() {
    for (int64_t row = 0; row < w.n; ++row) ReadRow<T>(w, row, out + row * w.k);
  });
}

void GatherRows(OpsContext& ops, const PanelMatrix& table, std::span<const TokenId> ids, float* out,
                int64_t ldout) {
  WithComputeType(table.dtype, [&]<class T>() {
    const auto gather = [&](int64_t first, int64_t count, int) {
      for (int64_t i = first; i < first + count; ++i) {
        const TokenId id = ids[static_cast<size_t>(i)];
        TANDEM_DCHECK(id >= 0 && id < table.n);
        ReadRow<T>(table, id, out + i * ldout);
      }
    };
    ParallelRows(ops, static_cast<int64_t>(ids.size()), table.k, gather);
  });
}

}  // namespace tandem::engine
