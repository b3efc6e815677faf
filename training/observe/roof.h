#pragma once

#include <filesystem>

#include "engine/ops/ops_context.h"
#include "engine/tensor/dtype.h"

namespace tandem::training {

// Operations per second that this machine can do in products of a dtype: what MFU is a share of.
// Measured briefly once and kept in `cache`, a JSON file that is read where it is of the same
// arithmetic, dtype and threads. `cache` may be empty.
double RoofFlops(engine::OpsContext& ops, engine::DType dtype, const std::filesystem::path& cache);

}  // namespace tandem::training
