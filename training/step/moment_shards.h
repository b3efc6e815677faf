#pragma once

#include <string>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/formats/safetensors/safetensors.h"
#include "training/dist/collectives.h"
#include "training/step/parameters.h"

namespace tandem::training {

// Whole moments on the first rank, empty on the others.
struct GatheredMoments {
  std::vector<engine::NamedTensor> tensors;  // borrow `buffers`
  std::vector<AlignedBuffer> buffers;
};

// Collects the ranks' parts, so that a checkpoint holds whole tensors and any number of ranks can
// resume it. All ranks call it.
GatheredMoments GatherMoments(Collectives& ranks, ParameterStore& parameters);

// Gives each rank its part of the first rank's file; null on the other ranks. Throws kDataLoss on
// the first rank naming a missing or misshapen tensor. All ranks call it.
void ScatterMoments(Collectives& ranks, ParameterStore& parameters,
                    const engine::SafetensorsFile* file, const std::string& source);

}  // namespace tandem::training
