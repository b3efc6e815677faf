#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/api/generation.h"
#include "engine/api/loaded_model.h"
#include "engine/api/stats.h"
#include "engine/base/error.h"
#include "engine/base/ids.h"
#include "engine/constrain/grammar.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/state_cache.h"
#include "engine/model/model.h"
#include "engine/ops/ops_context.h"
#include "engine/sampling/sampler.h"
#include "engine/sched/batch_plan.h"

namespace tandem::engine {

// Connects scheduling to tensors: runs planned slices through the model, then draws tokens and
// scores rows. Slices that pool get their hidden states added up instead. Engine thread only.
class StepRunner {
 public:
  // `max_rows` and `max_logit_rows` bound what one step may hold. Borrows `ops`, `kv`, `states`.
  StepRunner(std::shared_ptr<const Model> model, OpsContext& ops, KvCache& kv, StateCache& states,
             int64_t max_rows, int64_t max_logit_rows);

  // A planned slice, and its positions that are scored as prompt: [score_begin, score_end).
  struct Slice {
    PlannedSlice planned;
    int64_t score_begin = 0;
    int64_t score_end = 0;
    const Adapter* adapter = nullptr;  // null: the base model alone
    // Pooled positions whose final hidden states are added to `hidden_sum` [hidden_dim]. A slice
    // with a hidden sum has no sampling position.
    int64_t pool_begin = 0;
    int64_t pool_end = 0;
    bool pools = false;
    std::span<double> hidden_sum = {};
    // Set by Forward: logit rows of score_begin and of the sampling position. The rows of guesses
    // follow the latter.
    int64_t first_score_row = 0;
    int64_t sample_row = -1;
  };
  // Copies blocks and states, and computes all rows. The logits stay until the next Forward.
  void Forward(const BatchPlan& plan, std::span<Slice> slices);

  // Draws a token from a logit row (sampler set) or scores a given one (sampler null).
  struct Job {
    int64_t logit_row = 0;
    const Sampler* sampler = nullptr;
    int64_t position = 0;  // of the drawn token in its sequence
    std::span<const TokenId> banned = {};
    TokenId forced = -1;  // drawn if the grammar allows it; -1: none
    // Both null: the draw is free. Creates the matcher from the grammar when there is none yet.
    const Grammar* grammar = nullptr;
    std::optional<GrammarMatcher>* matcher = nullptr;
    int n_top = -1;  // number of alternatives; -1: no log-probability

    TokenId token = -1;               // result; -1 when no token could be drawn
    bool is_complete = false;         // result: the text was complete, and nothing can follow
    std::optional<Error> fault = {};  // result: the grammar cannot go on
    TokenLogprob logprob = {};
  };
  // Jobs of many rows run on all workers.
  void Run(std::span<Job> jobs);

  int64_t scratch_bytes() const;

 private:
  struct Scratch {
    SamplerScratch sampler;
    std::vector<uint32_t> mask;  // of the grammar, in words of 32 tokens
  };

  void ListStates(const BatchPlan& plan, std::span<const Slice> slices);
  void ListFurtherTables(std::span<const Slice> slices);
  void RunJob(Job& job, Scratch& scratch) const;
  void Draw(Job& job, std::span<const float> row, Scratch& scratch) const;
  void ComputeLse(std::span<const Job> jobs);

  const std::shared_ptr<const Model> model_;
  OpsContext& ops_;
  KvCache& kv_;
  StateCache& states_;
  ModelRunner runner_;
  const int64_t vocab_size_;

  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_;
  std::vector<AttentionSlice> attention_slices_;
  std::vector<AttentionSlice> further_tables_;  // table by table
  std::vector<int32_t> logit_rows_;
  std::vector<HiddenSum> hidden_sums_;
  std::vector<const Adapter*> adapters_;  // by slice
  std::vector<SliceState> slice_states_;  // by slice
  std::vector<StateSave> state_saves_;    // as in the plan
  std::span<const float> logits_;         // [logit_rows, vocab_size]
  std::vector<float> lse_;                // [logit_rows]; only of rows that jobs score
  std::vector<uint8_t> wants_lse_;
  std::vector<Scratch> scratch_;  // one per worker
};

}  // namespace tandem::engine
