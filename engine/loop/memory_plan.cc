#include "engine/loop/memory_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "engine/base/available_memory.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/kv/block_table.h"

namespace tandem::engine {
namespace {

// Prompt rows whose logits one step keeps. Each costs vocab_size floats, so prompts with
// prompt_logprobs run in smaller chunks.
constexpr int64_t kScoreChunkTokens = 64;

// The next tokens of all running sequences leave only after the step, so a chunk should take little
// time: half a TFLOP. Below the minimum, matrix products lose speed. Above the maximum, a chunk
// delays new requests and gains nothing.
constexpr int64_t kChunkFlops = int64_t{1} << 39;
constexpr int64_t kLeastChunkTokens = 256;
constexpr int64_t kMostChunkTokens = 1024;

// Slots beyond those of the running sequences hold snapshots: about two per sequence, and some for
// common beginnings.
constexpr int64_t kLeastStates = 2;
constexpr int64_t kSharedSnapshots = 64;
int64_t MostStates(const EngineOptions& options) {
  return CheckedAdd(CheckedMul<int64_t>(options.max_seqs, 3, "--max-seqs"), kSharedSnapshots,
                    "--max-seqs");
}

// A model without attention has blocks of tokens without bytes: prefixes and snapshots have their
// keys. Their number only bounds the tables.
int64_t BlocksWithoutKeys(const EngineOptions& options, int64_t per_sequence) {
  constexpr int64_t kMostBlocks = 1 << 20;
  const int64_t n_blocks =
      std::max(per_sequence,
               std::min(CheckedMul(options.max_seqs, per_sequence, "--max-seqs"), kMostBlocks));
  spdlog::info("no kv cache: no layer has attention; blocks={} tokens={}", n_blocks,
               n_blocks * kTokensPerBlock);
  return n_blocks;
}

// Blocks beyond what running sequences hold keep prefixes for reuse, so the bound counts every
// position in every table.
int64_t MostKvBlocks(const KvCache::Shape& shape, int64_t max_seqs, int64_t max_model_len) {
  const auto n_tables = static_cast<int64_t>(shape.windows.size());
  return CheckedMul(max_seqs, n_tables * BlocksFor(max_model_len), "--max-seqs");
}

}  // namespace

int64_t DefaultMemoryBudgetBytes() { return AvailableMemoryBytes() / 10 * 8; }

namespace {

int64_t BudgetOf(const EngineOptions& options) {
  return options.memory_bytes > 0 ? options.memory_bytes : DefaultMemoryBudgetBytes();
}

}  // namespace

EngineOptions ResolveOptions(EngineOptions options, int64_t active_parameters) {
  TANDEM_CHECK(options.max_seqs > 0 && options.prefill_chunk_tokens >= 0);
  if (options.prefill_chunk_tokens == 0) {
    const int64_t flops_per_token = 2 * std::max<int64_t>(1, active_parameters);
    options.prefill_chunk_tokens =
        std::clamp(kChunkFlops / flops_per_token, kLeastChunkTokens, kMostChunkTokens);
  }
  return options;
}

int64_t StepRows(const EngineOptions& options) {
  return options.prefill_chunk_tokens + options.max_seqs;
}

int64_t ScoreChunkTokens(const EngineOptions& options) {
  return std::min(kScoreChunkTokens, options.prefill_chunk_tokens);
}

int64_t StepLogitRows(const EngineOptions& options) {
  return options.max_seqs + ScoreChunkTokens(options);
}

MemoryPlan PlanMemory(const ModelDir& dir, const EngineOptions& asked) {
  const ModelOutline outline = OutlineModel(dir, ToLoadOptions(asked));
  const EngineOptions options = ResolveOptions(asked, outline.active_parameters);
  const KvCache::Shape shape = ModelRunner::WindowedKvShape(outline, options.kv_format);
  const int64_t sequence_bytes = CheckedMul(
      MostBlocksOfSequence(shape.windows, outline.max_context_len, options.prefill_chunk_tokens),
      shape.block_bytes(), "keys and values of one sequence");
  MemoryPlan plan;
  plan.max_model_len = outline.max_context_len;
  plan.format = dir.format();
  plan.weights_dtype = outline.types.name;
  plan.parameters = outline.parameter_count();
  plan.active_parameters = outline.active_parameters;
  plan.active_weights = outline.active_weight_bytes;
  plan.least.weights = outline.weight_bytes;
  plan.least.weights_mapped = !options.cache_dir.empty();
  plan.least.scratch = CheckedAdd(
      outline.rope_bytes,
      ModelRunner::ScratchBytes(outline, StepRows(options), StepLogitRows(options)), "scratch");
  const int64_t state_bytes = CheckedMul<int64_t>(ModelRunner::StateFloats(outline), sizeof(float),
                                                  "state of one sequence");
  const int64_t least_kv = CheckedAdd(sequence_bytes, kLeastStates * state_bytes, "one sequence");
  plan.least.kv = options.kv_cache_bytes > 0 ? options.kv_cache_bytes : least_kv;
  plan.most_kv =
      options.kv_cache_bytes > 0
          ? options.kv_cache_bytes
          : CheckedAdd(CheckedMul(MostKvBlocks(shape, options.max_seqs, outline.max_context_len),
                                  shape.block_bytes(), "--max-seqs"),
                       CheckedMul(MostStates(options), state_bytes, "--max-seqs"), "--max-seqs");
  return plan;
}

LoadOptions ToLoadOptions(const EngineOptions& options) {
  LoadOptions load;
  load.dtype = options.dtype;
  load.block = options.block;
  load.max_context_len = options.max_model_len;
  load.cache_dir = options.cache_dir;
  load.cache_limit_bytes = options.cache_limit_bytes;
  return load;
}

int64_t PlanStates(const Model& model, const EngineOptions& options, int64_t state_floats,
                   int64_t scratch_bytes) {
  const int64_t state_bytes =
      CheckedMul<int64_t>(state_floats, sizeof(float), "state of one sequence");
  int64_t bytes = options.kv_cache_bytes;
  if (bytes == 0) {
    const int64_t budget = BudgetOf(options);
    bytes = std::max<int64_t>(0, budget - model.weight_bytes() - scratch_bytes);
  }
  // Keys and values get the rest, where a layer has them.
  const int64_t share = ModelRunner::KvShape(model, 1).block_bytes() > 0 ? bytes / 4 : bytes;
  const int64_t n_states =
      std::max(kLeastStates, std::min(share / state_bytes, MostStates(options)));
  spdlog::info("states of recurrent layers slots={} bytes={}", n_states, n_states * state_bytes);
  return n_states;
}

int64_t PlanKvBlocks(const Model& model, const EngineOptions& options, const KvCache::Shape& shape,
                     int64_t max_model_len, int64_t scratch_bytes) {
  const int64_t block_bytes = shape.block_bytes();
  TANDEM_CHECK(block_bytes >= 0 && max_model_len > 0);
  const int64_t per_sequence =
      MostBlocksOfSequence(shape.windows, max_model_len, options.prefill_chunk_tokens);
  if (block_bytes == 0) return BlocksWithoutKeys(options, per_sequence);

  int64_t bytes = options.kv_cache_bytes;
  std::string source = "the memory reserved for the KV cache";
  if (bytes == 0) {
    const int64_t budget = BudgetOf(options);
    bytes = std::max<int64_t>(0, budget - model.weight_bytes() - scratch_bytes);
    source = "the memory budget of " + BytesText(budget) + " minus " +
             BytesText(model.weight_bytes()) + " of weights and " + BytesText(scratch_bytes) +
             " of scratch memory";
  }
  int64_t n_blocks = std::min<int64_t>(bytes / block_bytes, std::numeric_limits<int32_t>::max());
  if (options.kv_cache_bytes == 0) {
    n_blocks = std::min(n_blocks, MostKvBlocks(shape, options.max_seqs, max_model_len));
  }
  if (n_blocks < per_sequence) {
    throw Error(ErrorCode::kFailedPrecondition,
                source + " leaves " + BytesText(bytes) +
                    " for keys and values, but one sequence of " + std::to_string(max_model_len) +
                    " tokens needs " + BytesText(per_sequence * block_bytes) +
                    "; raise --memory or lower --max-model-len");
  }
  spdlog::info("kv cache blocks={} blocks_per_sequence={} tables={} bytes={} max_model_len={}",
               n_blocks, per_sequence, shape.windows.size(), n_blocks * block_bytes, max_model_len);
  return n_blocks;
}

int64_t PlanDraftBlocks(const LoadedModel& model, const EngineOptions& options,
                        const KvCache::Shape& shape, int64_t most_wants, int64_t scratch_bytes) {
  const int64_t ours = ModelRunner::KvShape(*model.model, 1, shape.format).block_bytes();
  const int64_t theirs = std::max<int64_t>(1, ModelRunner::KvShape(*model.draft, 1).block_bytes());
  const int64_t length = std::min(model.max_model_len, model.draft->config().max_context_len);
  const int64_t per_sequence = BlocksFor(length);
  int64_t bytes = options.kv_cache_bytes;
  if (bytes == 0) {
    bytes = std::max<int64_t>(0, BudgetOf(options) - model.model->weight_bytes() -
                                     model.draft->weight_bytes() - scratch_bytes);
  }
  // The model itself keeps room for one sequence.
  const int64_t needed =
      MostBlocksOfSequence(shape.windows, model.max_model_len, options.prefill_chunk_tokens) *
      shape.block_bytes();
  const int64_t share = std::min(bytes / (ours + theirs), (bytes - needed) / theirs);
  return std::clamp(share, per_sequence,
                    CheckedMul(most_wants, per_sequence, "blocks of the draft model"));
}

void ReserveDraft(const LoadedModel& model, int64_t kv_bytes, EngineOptions& options) {
  if (options.kv_cache_bytes > 0) {
    options.kv_cache_bytes = std::max<int64_t>(1, options.kv_cache_bytes - kv_bytes);
    return;
  }
  options.memory_bytes =
      std::max<int64_t>(1, BudgetOf(options) - kv_bytes - model.draft->weight_bytes());
}

}  // namespace tandem::engine
