#include "engine/loop/memory_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "engine/base/available_memory.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/kv/block_pool.h"

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

int64_t BlockBytes(const KvCache::Shape& shape) {
  return 2 * shape.n_layers * shape.n_kv_heads * shape.head_block_bytes;
}

int64_t BlocksPerSequence(int64_t max_model_len) {
  return (max_model_len + kTokensPerBlock - 1) / kTokensPerBlock;
}

}  // namespace

int64_t DefaultMemoryBudgetBytes() { return AvailableMemoryBytes() / 10 * 8; }

EngineOptions ResolveOptions(EngineOptions options, int64_t parameter_count) {
  TANDEM_CHECK(options.max_seqs > 0 && options.prefill_chunk_tokens >= 0);
  if (options.prefill_chunk_tokens == 0) {
    const int64_t flops_per_token = 2 * std::max<int64_t>(1, parameter_count);
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
  const EngineOptions options = ResolveOptions(asked, outline.parameter_count());
  const int64_t sequence_bytes =
      CheckedMul(BlocksPerSequence(outline.max_context_len),
                 BlockBytes(ModelRunner::KvShape(outline.config, outline.types.dtype, 1)),
                 "keys and values of one sequence");
  MemoryPlan plan;
  plan.max_model_len = outline.max_context_len;
  plan.format = dir.format();
  plan.weights_dtype = outline.types.name;
  plan.least.weights = outline.weight_bytes;
  plan.least.weights_mapped = !options.cache_dir.empty();
  plan.least.scratch = CheckedAdd(
      outline.rope_bytes,
      ModelRunner::ScratchBytes(outline, StepRows(options), StepLogitRows(options)), "scratch");
  plan.least.kv = options.kv_cache_bytes > 0 ? options.kv_cache_bytes : sequence_bytes;
  plan.most_kv = options.kv_cache_bytes > 0
                     ? options.kv_cache_bytes
                     : CheckedMul(options.max_seqs, sequence_bytes, "--max-seqs");
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

int64_t PlanKvBlocks(const Model& model, const EngineOptions& options, int64_t max_model_len,
                     int64_t scratch_bytes) {
  const int64_t block_bytes = BlockBytes(ModelRunner::KvShape(model, 1));
  TANDEM_CHECK(block_bytes > 0 && max_model_len > 0);
  const int64_t per_sequence = BlocksPerSequence(max_model_len);

  int64_t bytes = options.kv_cache_bytes;
  std::string source = "the memory reserved for the KV cache";
  if (bytes == 0) {
    const int64_t budget =
        options.memory_bytes > 0 ? options.memory_bytes : DefaultMemoryBudgetBytes();
    bytes = std::max<int64_t>(0, budget - model.weight_bytes() - scratch_bytes);
    source = "the memory budget of " + BytesText(budget) + " minus " +
             BytesText(model.weight_bytes()) + " of weights and " + BytesText(scratch_bytes) +
             " of scratch memory";
  }
  int64_t n_blocks = std::min<int64_t>(bytes / block_bytes, std::numeric_limits<int32_t>::max());
  if (options.kv_cache_bytes == 0) {
    n_blocks = std::min(n_blocks, CheckedMul(options.max_seqs, per_sequence, "--max-seqs"));
  }
  if (n_blocks < per_sequence) {
    throw Error(ErrorCode::kFailedPrecondition,
                source + " leaves " + BytesText(bytes) +
                    " for keys and values, but one sequence of " + std::to_string(max_model_len) +
                    " tokens needs " + BytesText(per_sequence * block_bytes) +
                    "; raise --memory or lower --max-model-len");
  }
  spdlog::info("kv cache blocks={} tokens={} bytes={} max_model_len={}", n_blocks,
               n_blocks * kTokensPerBlock, n_blocks * block_bytes, max_model_len);
  return n_blocks;
}

}  // namespace tandem::engine
