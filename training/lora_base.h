#pragma once

#include "engine/io/model_dir.h"
#include "engine/model/model.h"
#include "training/spec.h"

namespace tandem::training {

// How the base of a spec's adapter is opened: as a server would open it, in what lora.base_dtype
// says. Throws kInvalidArgument naming the keys when the files keep blocks of integers and the spec
// asks to compute in f32.
engine::LoadOptions BaseLoadOptions(const TrainSpec& spec, const engine::ModelDir& dir,
                                    const std::vector<engine::WeightSpec>& weights);

}  // namespace tandem::training
