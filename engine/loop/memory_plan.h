#pragma once

#include <cstdint>

#include "engine/api/generation.h"
#include "engine/api/loaded_model.h"
#include "engine/api/options.h"
#include "engine/api/stats.h"
#include "engine/kv/kv_cache.h"
#include "engine/model/model.h"

namespace tandem::engine {

LoadOptions ToLoadOptions(const EngineOptions& options);

// Fills options that are not set, by the parameters that one row reads.
EngineOptions ResolveOptions(EngineOptions options, int64_t active_parameters);
// The maximum number of rows, and of rows with logits, in one step. REQUIRES: resolved options.
int64_t StepRows(const EngineOptions& options);
int64_t StepLogitRows(const EngineOptions& options);
// Rows of prompts with prompt_logprobs in one step.
int64_t ScoreChunkTokens(const EngineOptions& options);

// The number of state slots of an engine whose model keeps `state_floats` per sequence: for
// max_seqs sequences and for snapshots, within a quarter of the memory for keys, values and states,
// or all of it where no layer has attention. At least two.
int64_t PlanStates(const Model& model, const EngineOptions& options, int64_t state_floats,
                   int64_t scratch_bytes);

// The number of KV blocks of an engine. If the options do not set it, enough for max_seqs sequences
// of max_model_len tokens, as far as the memory budget allows after weights and scratch. Without
// attention, blocks have no bytes and the number bounds tables only. Throws kFailedPrecondition
// naming the numbers and the flags when not even one sequence fits. REQUIRES: resolved options.
int64_t PlanKvBlocks(const Model& model, const EngineOptions& options, const KvCache::Shape& shape,
                     int64_t max_model_len, int64_t scratch_bytes);

// The number of KV blocks of a model's draft model: as many tokens as the model itself gets, up to
// `most_wants` sequences, and at least one sequence. REQUIRES: a draft model, resolved options.
int64_t PlanDraftBlocks(const LoadedModel& model, const EngineOptions& options,
                        const KvCache::Shape& shape, int64_t most_wants, int64_t scratch_bytes);
// Takes the draft model's weights and its `kv_bytes` out of what the options give to the model.
void ReserveDraft(const LoadedModel& model, int64_t kv_bytes, EngineOptions& options);

}  // namespace tandem::engine
