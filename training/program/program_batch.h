#pragma once

#include <cstdint>
#include <span>

#include "engine/base/ids.h"
#include "training/ops/attention.h"
#include "training/ops/distillation.h"
#include "training/ops/pointwise.h"

namespace tandem::training {

// One micro-batch: `rows` tokens in packed segments that cover all rows in order. Padding is a
// segment of its own with weight 0.
struct ProgramBatch {
  std::span<const TokenId> tokens;      // [rows]
  std::span<const int32_t> positions;   // [rows], from 0 in every segment
  std::span<const Segment> segments;    // at most the program's max_segments
  std::span<const TokenId> targets;     // [rows]; -1 where the row is not trained
  std::span<const float> weights;       // [rows]; 0 where the row is not trained
  std::span<const DropoutRow> sources;  // [rows]; only programs with dropout or noise read it
  uint64_t dropout_seed = 0;
  const Distillation* distillation = nullptr;  // of the head; null: none
};

}  // namespace tandem::training
