#include "engine/ops/row_mix.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/ops/parallel.h"

namespace tandem::engine {
namespace {

// The sum of term(i) over [0, n).
template <class Term>
double SumInLanes(int64_t n, const Term& term) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// Calls body(row, y of the row) for every row.
template <class Body>
void ForEachDenseRow(OpsContext& ops, const Matrix& y, const Body& body) {
  TANDEM_CHECK(y.dtype == DType::kF32 && y.stride == y.cols);
  auto* out = static_cast<float*>(y.data);
  ParallelRows(ops, y.rows, y.cols, [&](int64_t first, int64_t count, int) {
    for (int64_t row = first; row < first + count; ++row) body(row, out + row * y.cols);
  });
}

}  // namespace

double RowDot(const float* a, const float* b, int64_t n) {
  return SumInLanes(
      n, [&](int64_t i) { return static_cast<double>(a[i]) * static_cast<double>(b[i]); });
}

RowSpread SpreadOf(const float* x, int64_t n) {
  const auto count = static_cast<double>(n);
  const double mean = SumInLanes(n, [&](int64_t i) { return static_cast<double>(x[i]); }) / count;
  const double squares = SumInLanes(n, [&](int64_t i) {
    const double difference = static_cast<double>(x[i]) - mean;
    return difference * difference;
  });
  return {.mean = mean, .deviation = std::sqrt(squares / count)};
}

float CutOf(const RowSpread& spread, float deviations) {
  return static_cast<float>(spread.mean + static_cast<double>(deviations) * spread.deviation);
}

void MixRows(OpsContext& ops, std::span<const float* const> xs, const float* weights, int64_t ldw,
             int64_t first, float offset, const Matrix& y) {
  TANDEM_CHECK(!xs.empty() && xs.size() <= kMaxMixed);
  ForEachDenseRow(ops, y, [&](int64_t row, float* out) {
    for (size_t i = 0; i < xs.size(); ++i) {
      const float weight = weights[row * ldw + first + static_cast<int64_t>(i)] + offset;
      const float* x = xs[i] + row * y.cols;
      if (i == 0) {
        for (int64_t c = 0; c < y.cols; ++c) out[c] = weight * x[c];
      } else {
        for (int64_t c = 0; c < y.cols; ++c) out[c] += weight * x[c];
      }
    }
  });
}

void MatchMagnitude(OpsContext& ops, const float* x, const float* like, float least_square,
                    const Matrix& y) {
  const auto count = static_cast<double>(y.cols);
  ForEachDenseRow(ops, y, [&](int64_t row, float* out) {
    const float* from = x + row * y.cols;
    const float* model = like + row * y.cols;
    const double wanted = std::sqrt(RowDot(model, model, y.cols) / count);
    const double square = RowDot(from, from, y.cols) / count;
    const double own = std::sqrt(std::max(square, static_cast<double>(least_square)));
    const auto factor = static_cast<float>(wanted / own);
    for (int64_t c = 0; c < y.cols; ++c) out[c] = factor * from[c];
  });
}

void AboveCut(OpsContext& ops, const float* x, float deviations, const Matrix& y) {
  ForEachDenseRow(ops, y, [&](int64_t row, float* out) {
    const float* from = x + row * y.cols;
    const float cut = CutOf(SpreadOf(from, y.cols), deviations);
    for (int64_t c = 0; c < y.cols; ++c) out[c] = std::max(0.0f, from[c] - cut);
  });
}

void ScaleColumns(OpsContext& ops, const float* x, const float* w, const Matrix& y) {
  ForEachDenseRow(ops, y, [&](int64_t row, float* out) {
    const float* from = x + row * y.cols;
    for (int64_t c = 0; c < y.cols; ++c) out[c] = w[c] * from[c];
  });
}

void ScaleExperts(OpsContext& ops, const float* routing, const float* scales, const Matrix& y) {
  const int64_t top_k = y.cols / 2;
  ForEachDenseRow(ops, y, [&](int64_t row, float* out) {
    const float* from = routing + row * y.cols;
    for (int64_t s = 0; s < top_k; ++s) {
      out[s] = from[s];
      out[top_k + s] = from[top_k + s] * scales[static_cast<int64_t>(from[s])];
    }
  });
}

}  // namespace tandem::engine
