#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/formats/maxtext/maxtext_map.h"
#include "convert/orbax/orbax_checkpoint.h"
#include "engine/model/families/config.h"

namespace tandem::convert {

// A parameter of the model and the checkpoint's array that holds it.
struct MaxTextParameter {
  MaxTextLeaf map;
  const OrbaxCheckpoint::Leaf* leaf = nullptr;  // of the checkpoint
};

// Finds each parameter of the model in a MaxText checkpoint, as MaxTextLeaves lists them. Linen and
// NNX trees are recognised by their parameter names, whatever the prefix or suffix; optimizer
// states are skipped. `source` names the checkpoint in messages. Throws kDataLoss for a parameter
// that is missing, misshapen or there twice. Throws kUnsupported for an unknown one, for adapters
// and for numbers that are not floats.
std::vector<MaxTextParameter> MatchMaxTextParameters(const OrbaxCheckpoint& checkpoint,
                                                     const engine::ModelConfig& config,
                                                     bool rotates_pairs, const std::string& source);

}  // namespace tandem::convert
