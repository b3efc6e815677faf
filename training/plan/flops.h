#pragma once

#include <cstdint>

#include "engine/model/families/config.h"

namespace tandem::training {

// MaxText's count of the model FLOPs of one training step, in TFLOP. Three times the forward of all
// linear layers and causal attention: with the head, without embedding look-ups. Recomputation and
// frozen weights do not change it. `rows` sequences have `row_length` tokens each. `gated`:
// feed-forward layers have two input projections.
double TflopPerStep(const engine::ModelConfig& config, bool gated, int64_t rows,
                    int64_t row_length);

}  // namespace tandem::training
