#pragma once

#include <cstdint>
#include <span>

#include "engine/ops/ops_context.h"

namespace tandem::training {

// Backward of engine/ops/row_mix.h. All matrices are dense f32 [rows, cols]; gradients are added
// to, and may be null where nothing needs them. Sums over rows are by one task each, row by row in
// order.

// Streams and weights of a MixRows, and their gradients.
struct MixGradient {
  std::span<const float* const> xs;
  std::span<float* const> dxs;
  const float* weights = nullptr;  // [rows, weight_cols]
  float* dweights = nullptr;
  int64_t weight_cols = 0;
  int64_t first = 0;
  float offset = 0;
};
void MixBackward(engine::OpsContext& ops, const MixGradient& mix, const float* dy, int64_t rows,
                 int64_t cols);

// A row of `like` without any magnitude gets no gradient.
void MatchMagnitudeBackward(engine::OpsContext& ops, const float* x, const float* like,
                            float least_square, const float* dy, int64_t rows, int64_t cols,
                            float* dx, float* dlike);

// Values at the cut pass no gradient; a row of equal values none through its deviation.
void AboveCutBackward(engine::OpsContext& ops, const float* x, float deviations, const float* dy,
                      int64_t rows, int64_t cols, float* dx);

// dw may be null: frozen.
void ScaleColumnsBackward(engine::OpsContext& ops, const float* x, const float* w, const float* dy,
                          int64_t rows, int64_t cols, float* dx, float* dw);

// `routing` is the input [rows, 2 * top_k]; its ids get no gradient. dscales may be null.
void ScaleExpertsBackward(engine::OpsContext& ops, const float* routing, const float* scales,
                          const float* dy, int64_t rows, int64_t top_k, float* drouting,
                          float* dscales);

// From the result y of cap * tanh(x / cap).
void SoftCapBackward(engine::OpsContext& ops, const float* y, float cap, const float* dy,
                     int64_t elements, float* dx);

}  // namespace tandem::training
