#pragma once

#include <cstdint>

#include "engine/model/config.h"

namespace tandem::training {

// MaxText's count of the model FLOPs of one training step, in TFLOP: three times the forward of all
// linear layers (head included, embedding look-ups not) and of causal attention, whatever is
// recomputed or frozen. `rows` sequences of `row_length` tokens; gated feed-forward layers count
// two input projections.
double TflopPerStep(const engine::ModelConfig& config, bool gated, int64_t rows,
                    int64_t row_length);

}  // namespace tandem::training
