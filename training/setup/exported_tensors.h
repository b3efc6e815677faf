#pragma once

#include <cstddef>
#include <vector>

#include "engine/formats/safetensors/safetensors.h"
#include "training/step/parameters.h"

namespace tandem::training {

// The tensors to export, as published checkpoints have them: weights with a StoredPart are stacked
// into the larger tensor. The views borrow `bytes`.
std::vector<engine::NamedTensor> ExportedTensors(const ParameterStore& parameters,
                                                 std::vector<std::vector<std::byte>>* bytes);

}  // namespace tandem::training
