#pragma once

#include <cstdint>

namespace tandem::training {

// The loss of distillation (Distillation of training/ops/distillation.h).
struct DistillOptions {
  double alpha = 0.5;      // weight of the teacher's distribution; the rest is cross-entropy's
  double temperature = 1;  // of both distributions
  int64_t top_k = 20;      // tokens of the teacher per position
};

}  // namespace tandem::training
