#pragma once

#include "engine/model/families/family.h"

namespace tandem::training {

// The dtype of a weight in checkpoints and exports of a store that computes in `compute`. DoRA's
// magnitudes stay f32, and the program uses all their bits: a rounded one would scale a whole row.
inline engine::DType ExportDType(const engine::WeightSpec& spec, engine::DType compute) {
  return spec.name.ends_with(".lora_magnitude_vector") ? engine::DType::kF32 : compute;
}

}  // namespace tandem::training
