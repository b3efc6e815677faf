#pragma once

#include <cstdint>

#include "engine/api/generation.h"
#include "engine/api/loaded_model.h"
#include "engine/api/options.h"
#include "engine/api/stats.h"
#include "engine/model/model.h"

namespace tandem::engine {

LoadOptions ToLoadOptions(const EngineOptions& options);

// Fills options that are not set, by the model's size.
EngineOptions ResolveOptions(EngineOptions options, int64_t parameter_count);
// The maximum number of rows, and of rows with logits, in one step. REQUIRES: resolved options.
int64_t StepRows(const EngineOptions& options);
int64_t StepLogitRows(const EngineOptions& options);
// Rows of prompts with prompt_logprobs in one step.
int64_t ScoreChunkTokens(const EngineOptions& options);

// The number of KV blocks of an engine. If the options do not set it, enough for max_seqs sequences
// of max_model_len tokens, as far as the memory budget allows after weights and scratch. Throws
// kFailedPrecondition naming the numbers and the flags when not even one sequence fits.
int64_t PlanKvBlocks(const Model& model, const EngineOptions& options, int64_t max_model_len,
                     int64_t scratch_bytes);

}  // namespace tandem::engine
