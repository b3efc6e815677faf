#pragma once

#include <filesystem>

#include "engine/ops/ops_context.h"
#include "engine/tensor/dtype.h"

namespace tandem::training {

// FLOP/s that this machine reaches in matrix products of a dtype; MFU is relative to it. Measures
// once, briefly, and keeps the result in `cache`, a JSON file for one arithmetic, dtype and number
// of threads. `cache` may be empty.
double RoofFlops(engine::OpsContext& ops, engine::DType dtype, const std::filesystem::path& cache);

}  // namespace tandem::training
