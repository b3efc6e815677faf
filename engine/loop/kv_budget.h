#pragma once

#include <cstdint>

#include "engine/model/model.h"
#include "engine/options.h"

namespace tandem::engine {

// 80 % of what this process may use: the smaller of available memory and what the cgroup leaves.
int64_t DefaultMemoryBudgetBytes();

// How many KV blocks an engine gets: what the options say, else enough for max_seqs sequences of
// max_model_len tokens as far as the memory budget carries beside weights and scratch. Throws
// kFailedPrecondition naming the numbers and the flags when not even one sequence fits.
int64_t PlanKvBlocks(const Model& model, const EngineOptions& options, int64_t max_model_len,
                     int64_t scratch_bytes);

}  // namespace tandem::engine
