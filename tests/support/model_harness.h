#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "engine/kv/block_pool.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/state_cache.h"
#include "engine/model/adapter.h"
#include "engine/model/model.h"
#include "engine/ops/ops_context.h"

namespace tandem::tests {

// A loaded model that can run steps, without a scheduler: the test chooses the rows of each step.
class ModelHarness {
 public:
  struct Options {
    std::optional<engine::DType> dtype = {};
    engine::BlockFormat block = engine::BlockFormat::kNone;
    const engine::KernelTable* kernels = nullptr;  // null: the best
    int n_threads = 1;
    int64_t n_blocks = 128;
    int64_t max_rows = 512;
    std::filesystem::path cache_dir = {};
  };
  ModelHarness(const std::filesystem::path& model_dir, const Options& options);

  // The computed part of one sequence. Drop returns its blocks.
  struct Sequence {
    int64_t length = 0;
    std::vector<BlockId> blocks = {};
    std::vector<float> state = {};  // of models with state; made by the first step
    const engine::Adapter* adapter = nullptr;
  };
  struct Part {
    Sequence* sequence;
    std::vector<TokenId> tokens;  // appended to the sequence in this step
  };
  enum class Rows { kAll, kLastOfEach };

  // Logits [rows, vocab] of one step over the parts.
  std::vector<float> Step(std::vector<Part> parts, Rows rows);
  void Drop(Sequence& sequence);

  std::shared_ptr<const engine::Adapter> LoadAdapter(const std::filesystem::path& dir);
  // Sets the adapter of Prefill and Greedy; null: none.
  void UseAdapter(std::shared_ptr<const engine::Adapter> adapter) { adapter_ = std::move(adapter); }

  // Logits at every position of `tokens`, with `chunk` tokens per step (0: all at once).
  std::vector<float> Prefill(const std::vector<TokenId>& tokens, size_t chunk);
  // Argmax continuations of prompts decoded together; prefill takes `chunk` tokens per step.
  std::vector<std::vector<TokenId>> Greedy(const std::vector<std::vector<TokenId>>& prompts,
                                           size_t n_tokens, size_t chunk);

  const engine::Model& model() const { return *model_; }
  std::shared_ptr<const engine::Model> shared_model() const { return model_; }
  engine::OpsContext& ops() { return ops_; }
  int64_t vocab_size() const { return model_->config().vocab_size; }
  int64_t free_blocks() const { return blocks_.num_free(); }

 private:
  ThreadPool pool_;
  engine::OpsContext ops_;
  std::shared_ptr<const engine::Model> model_;
  engine::KvCache kv_;
  const int64_t state_floats_;
  engine::BlockPool blocks_;
  engine::ModelRunner runner_;
  std::shared_ptr<const engine::Adapter> adapter_;
};

TokenId ArgMax(std::span<const float> logits);

}  // namespace tandem::tests
