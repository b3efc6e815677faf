#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "engine/kernels/block_formats.h"
#include "engine/tensor/dtype.h"
#include "engine/tensor/kv_format.h"

namespace tandem::engine {

struct KernelTable;

// EngineOptions::draft_rows where guesses are wanted. Up to so many rows, a step of a model larger
// than the caches costs little more than one row.
inline constexpr int64_t kDraftRows = 16;

// How to open and serve one model. Immutable once the engine runs.
struct EngineOptions {
  std::optional<DType> dtype;  // compute dtype; unset: decided by the checkpoint
  // Integer block format of the weights, as LoadOptions::block; compute and KV cache are bf16.
  BlockFormat block = BlockFormat::kNone;
  std::filesystem::path cache_dir;  // packed weights; empty: memory only
  int64_t cache_limit_bytes = 64LL << 30;
  int threads = 0;            // compute workers, the engine thread included; 0: physical cores
  int64_t max_seqs = 64;      // sequences running at once
  int64_t max_model_len = 0;  // context bound in tokens; 0: the model's own
  KvFormat kv_format = KvFormat::kCompute;
  int64_t kv_cache_bytes = 0;  // 0: derived from memory_bytes
  int64_t memory_bytes = 0;    // budget for weights, KV and scratch; 0: 80 % of available memory
  // Prompt tokens computed in one step, all sequences together; 0: by the model's size.
  int64_t prefill_chunk_tokens = 0;
  int64_t max_queue = 1024;  // waiting requests; beyond: kUnavailable
  bool prefix_cache = true;
  // Keeps cached prefixes beyond restarts, at most `prefix_dir_bytes` of them. Empty: memory only.
  std::filesystem::path prefix_dir;
  int64_t prefix_dir_bytes = 8LL << 30;
  // Rows of one step up to which guesses of next tokens are computed (engine/speculation); 0: none.
  int64_t draft_rows = 0;
  // Whether the text is searched for guesses, also without GenerationRequest::prediction. A draft
  // model (LoadedModel::draft) guesses where nothing is found.
  bool looks_up = true;
  // After this time without requests, an engine drops its cached prefixes and returns the KV
  // cache's memory. 0: never.
  std::chrono::milliseconds idle_release{300'000};
  // A cached prefix that no request used for this time gives its blocks' memory back, also while
  // the engine is busy. 0: never.
  std::chrono::milliseconds prefix_idle{1'800'000};
  const KernelTable* kernels = nullptr;  // null: the best for this CPU; tests choose
};

}  // namespace tandem::engine
