#pragma once

#include <cstdint>
#include <span>

#include "engine/ops/ops_context.h"
#include "engine/ops/rows.h"

namespace tandem::engine {

// Ops on whole rows whose factors come from the row itself. All matrices are f32 and dense. Sums
// over a row are in f64, by 16 lanes and a fixed tree, so a row's result depends on that row alone.

// Streams that one Mix reads: AltUp (Baykal et al. 2023) has four.
inline constexpr size_t kMaxMixed = 16;

// y[row, :] = sum over i, in order, of (weights[row, first + i] + offset) * xs[i][row, :]. Rows of
// `weights` are `ldw` floats apart.
void MixRows(OpsContext& ops, std::span<const float* const> xs, const float* weights, int64_t ldw,
             int64_t first, float offset, const Matrix& y);

// y = x * rms(like) / sqrt(max(mean(x^2), least_square)), row by row, with rms the root of the mean
// square.
void MatchMagnitude(OpsContext& ops, const float* x, const float* like, float least_square,
                    const Matrix& y);

// y = max(0, x - cut) with cut = mean + deviations * standard deviation of the row. Of normally
// distributed values, a fixed share stays above 0 (Gemma 3n's sparse activations).
void AboveCut(OpsContext& ops, const float* x, float deviations, const Matrix& y);

// y[row, c] = w[c] * x[row, c].
void ScaleColumns(OpsContext& ops, const float* x, const float* w, const Matrix& y);

// The routing (engine/ops/experts.h) with each weight multiplied by its expert's number in
// `scales`.
void ScaleExperts(OpsContext& ops, const float* routing, const float* scales, const Matrix& y);

// For the ops above and their gradients.
double RowDot(const float* a, const float* b, int64_t n);
struct RowSpread {
  double mean = 0;
  double deviation = 0;  // the root of the mean squared difference from the mean
};
RowSpread SpreadOf(const float* x, int64_t n);
// The number that AboveCut subtracts.
float CutOf(const RowSpread& spread, float deviations);

}  // namespace tandem::engine
