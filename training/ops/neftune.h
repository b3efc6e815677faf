#pragma once

#include <cstdint>
#include <span>

#include "training/ops/attention.h"
#include "training/ops/pointwise.h"

namespace tandem::training {

// NEFTune (Jain et al., 2023): adds alpha / sqrt(n d) * u to every element of x [rows, cols], with
// u uniform in [-1, 1), d = cols, and n the rows of the segment. u depends on the seed, the row's
// sample and position, and the column only, so that packing, accumulation and recomputation cannot
// change it. Rows of padding stay as they are. x and `sources` begin at row `first_row` of the
// batch, whose segments are given, and may end before it.
void AddNeftuneNoise(engine::OpsContext& ops, std::span<const DropoutRow> sources,
                     std::span<const Segment> segments, float alpha, uint64_t seed, int64_t cols,
                     float* x, int64_t first_row = 0);

}  // namespace tandem::training
