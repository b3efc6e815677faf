#pragma once

#include <cstdint>

#include "training/optim/optimizer.h"

namespace tandem::training {

// The update rules that have no kernel of their own. Each updates one tensor in place. Sums run
// over blocks that depend on the tensor's shape only, so the number of threads changes no bit.

struct UpdateStep {
  const OptimizerSpec* spec;
  double learning_rate;
  int64_t t;  // from 0
  double gradient_scale;
};

// Adafactor (Shazeer and Stern, 2018), with update clipping at 1, relative step sizes and the decay
// 1 - t^-0.8. The step size is the learning rate times max(1e-3, root mean square of the weights).
void UpdateByAdafactor(engine::OpsContext& ops, const UpdateStep& step,
                       const ParameterState& parameter);

// Lion (Chen et al., 2023): w -= rate (sign(b1 m + (1 - b1) g) + decay w); m = b2 m + (1 - b2) g.
void UpdateByLion(engine::OpsContext& ops, const UpdateStep& step, const ParameterState& parameter);

// Muon (Jordan et al., 2024): m = beta m + (1 - beta) g, then five Newton-Schulz steps make the
// Nesterov momentum beta m + (1 - beta) g nearly orthogonal. Products are in f32.
void UpdateByMuon(engine::OpsContext& ops, const UpdateStep& step, const ParameterState& parameter);
// Bytes that UpdateByMuon allocates for a matrix.
int64_t MuonScratchBytes(int64_t rows, int64_t columns);

}  // namespace tandem::training
