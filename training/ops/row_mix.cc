#include "training/ops/row_mix.h"

#include <algorithm>
#include <cmath>

#include "engine/ops/parallel.h"
#include "engine/ops/row_mix.h"

namespace tandem::training {
namespace {

using engine::OpsContext;
using engine::RowDot;

// Calls body(row) for every row, on any thread.
template <class Body>
void ForEachMixedRow(OpsContext& ops, int64_t rows, int64_t cols, const Body& body) {
  engine::ParallelRows(ops, rows, cols, [&](int64_t first, int64_t count, int) {
    for (int64_t row = first; row < first + count; ++row) body(row);
  });
}

}  // namespace

void MixBackward(OpsContext& ops, const MixGradient& mix, const float* dy, int64_t rows,
                 int64_t cols) {
  ForEachMixedRow(ops, rows, cols, [&](int64_t row) {
    const float* from = dy + row * cols;
    for (size_t i = 0; i < mix.xs.size(); ++i) {
      const int64_t at = row * mix.weight_cols + mix.first + static_cast<int64_t>(i);
      const float weight = mix.weights[at] + mix.offset;
      if (mix.dxs[i] != nullptr) {
        float* dx = mix.dxs[i] + row * cols;
        for (int64_t c = 0; c < cols; ++c) dx[c] += weight * from[c];
      }
      if (mix.dweights != nullptr) {
        mix.dweights[at] += static_cast<float>(RowDot(from, mix.xs[i] + row * cols, cols));
      }
    }
  });
}

void MatchMagnitudeBackward(OpsContext& ops, const float* x, const float* like, float least_square,
                            const float* dy, int64_t rows, int64_t cols, float* dx, float* dlike) {
  const auto count = static_cast<double>(cols);
  const auto least = static_cast<double>(least_square);
  ForEachMixedRow(ops, rows, cols, [&](int64_t row) {
    const int64_t first = row * cols;
    const double wanted = std::sqrt(RowDot(like + first, like + first, cols) / count);
    const double square = RowDot(x + first, x + first, cols) / count;
    const double own = std::sqrt(std::max(square, least));
    const double along = RowDot(dy + first, x + first, cols);
    const auto direct = static_cast<float>(wanted / own);
    // Through the row's own magnitude, and through that of `like`.
    const auto through_own =
        static_cast<float>(square > least ? along * wanted / (own * own * own * count) : 0);
    const auto through_like = static_cast<float>(wanted > 0 ? along / (own * wanted * count) : 0);
    for (int64_t c = first; dx != nullptr && c < first + cols; ++c) {
      dx[c] += direct * dy[c] - through_own * x[c];
    }
    for (int64_t c = first; dlike != nullptr && c < first + cols; ++c) {
      dlike[c] += through_like * like[c];
    }
  });
}

void AboveCutBackward(OpsContext& ops, const float* x, float deviations, const float* dy,
                      int64_t rows, int64_t cols, float* dx) {
  const auto count = static_cast<double>(cols);
  ForEachMixedRow(ops, rows, cols, [&](int64_t row) {
    const int64_t first = row * cols;
    const engine::RowSpread spread = engine::SpreadOf(x + first, cols);
    const float cut = engine::CutOf(spread, deviations);
    double passed = 0;
    for (int64_t c = first; c < first + cols; ++c) {
      if (x[c] > cut) passed += static_cast<double>(dy[c]);
    }
    const double slope = static_cast<double>(deviations) * passed / count;
    const auto by_mean = static_cast<float>(passed / count);
    const auto by_deviation =
        static_cast<float>(spread.deviation > 0 ? slope / spread.deviation : 0);
    const auto mean = static_cast<float>(spread.mean);
    for (int64_t c = first; c < first + cols; ++c) {
      const float own = x[c] > cut ? dy[c] : 0.0f;
      dx[c] += own - by_mean - by_deviation * (x[c] - mean);
    }
  });
}

void ScaleColumnsBackward(OpsContext& ops, const float* x, const float* w, const float* dy,
                          int64_t rows, int64_t cols, float* dx, float* dw) {
  ForEachMixedRow(ops, rows, cols, [&](int64_t row) {
    if (dx == nullptr) return;
    for (int64_t c = 0; c < cols; ++c) dx[row * cols + c] += w[c] * dy[row * cols + c];
  });
  if (dw == nullptr) return;
  constexpr int64_t kColumnsOfTask = 256;
  engine::ParallelRanges(ops, cols, kColumnsOfTask, [&](int64_t first, int64_t n, int) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = first; c < first + n; ++c) dw[c] += dy[row * cols + c] * x[row * cols + c];
    }
  });
}

void ScaleExpertsBackward(OpsContext& ops, const float* routing, const float* scales,
                          const float* dy, int64_t rows, int64_t top_k, float* drouting,
                          float* dscales) {
  const int64_t cols = 2 * top_k;
  const auto expert = [&](int64_t row, int64_t s) {
    return static_cast<int64_t>(routing[row * cols + s]);
  };
  ForEachMixedRow(ops, rows, cols, [&](int64_t row) {
    for (int64_t s = 0; drouting != nullptr && s < top_k; ++s) {
      const int64_t at = row * cols + top_k + s;
      drouting[at] += dy[at] * scales[expert(row, s)];
    }
  });
  if (dscales == nullptr) return;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t s = 0; s < top_k; ++s) {
      const int64_t at = row * cols + top_k + s;
      dscales[expert(row, s)] += dy[at] * routing[at];
    }
  }
}

void SoftCapBackward(OpsContext& ops, const float* y, float cap, const float* dy, int64_t elements,
                     float* dx) {
  engine::ParallelRanges(ops, elements, engine::kElementsPerTask,
                         [&](int64_t first, int64_t count, int) {
                           for (int64_t i = first; i < first + count; ++i) {
                             const float share = y[i] / cap;
                             dx[i] += dy[i] * (1 - share * share);
                           }
                         });
}

}  // namespace tandem::training
