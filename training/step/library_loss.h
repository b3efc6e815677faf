#pragma once

#include <span>

#include "training/loss/loss_library.h"
#include "training/step/micro_batch.h"

namespace tandem::training {

// The library's sum of losses over the trained tokens of a batch. Sets the weights of their rows so
// that cross-entropy has the library's gradients; an empty `weights` means an evaluation. Throws as
// LossLibrary::Compute.
double ApplyLoss(LossLibrary& library, const MicroBatch& batch,
                 std::span<const float> token_logprobs, std::span<float> weights);

}  // namespace tandem::training
