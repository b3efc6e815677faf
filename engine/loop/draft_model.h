#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/ids.h"
#include "engine/kv/block_pool.h"
#include "engine/kv/block_table.h"
#include "engine/kv/kv_cache.h"
#include "engine/model/model.h"
#include "engine/ops/ops_context.h"
#include "engine/sampling/sampler.h"

namespace tandem::engine {

// Guesses the next tokens of several sequences with a small model of the same vocabulary
// (Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative Decoding").
// Its keys and values live in blocks of its own. When these run out, the text that was used least
// recently loses its blocks and is computed again later. Engine thread only.
class DraftModel {
 public:
  // Rows of texts that one call computes before it guesses. A longer text gets its first guess
  // after several calls.
  static constexpr int64_t kCatchUpRows = 256;

  // One sequence's keys and values. Its end releases them. REQUIRES: the model outlives it.
  class Text {
   public:
    explicit Text(DraftModel& owner);
    ~Text();
    Text(const Text&) = delete;
    Text& operator=(const Text&) = delete;

    int64_t n_blocks() const { return static_cast<int64_t>(blocks_.size()); }

   private:
    friend class DraftModel;
    DraftModel& owner_;
    std::vector<TokenId> tokens_;  // those with keys and values, wrong guesses included
    BlockTable blocks_;
    uint64_t last_use_ = 0;
  };

  // What to guess: up to n tokens after `tokens`, which is not empty. `sampler` is the request's.
  // It draws from the guessed logits with the random numbers of the places, so that both models
  // draw the same token where their distributions agree.
  struct Want {
    Text* text = nullptr;
    std::span<const TokenId> tokens;
    int64_t n = 0;
    const Sampler* sampler = nullptr;
    std::vector<TokenId> draft = {};  // result; empty: no guess now
  };

  // Sequences have at most `max_model_len` tokens of a vocabulary of `vocab_size`; one call guesses
  // for at most `most_wants`. Borrows `ops`. REQUIRES: the model has no recurrent state, and blocks
  // for one sequence.
  DraftModel(std::shared_ptr<const Model> model, OpsContext& ops, int64_t n_blocks,
             int64_t most_wants, int64_t vocab_size);

  // Returns the number of forward passes. After std::bad_alloc every text is valid.
  int64_t Draft(std::span<Want> wants);

  // Forgets all texts and returns their memory to the system. REQUIRES: there are none.
  void Discard();

  int64_t kv_bytes() const { return kv_.bytes(); }
  int64_t scratch_bytes() const { return runner_.scratch_bytes(); }

 private:
  bool Prepare(Want& want);
  bool Reserve(Text& text, int64_t n_tokens);
  void Release(Text& text);
  bool EvictOne();
  // Computes tokens [tokens_.size(), end) of each text's entry in `rows_`, and draws.
  struct Rows {
    Want* want;
    int64_t n_rows;
    bool draws;
  };
  void Forward();
  TokenId Draw(const Want& want, std::span<const float> logits);
  TokenId TokenAt(const Want& want, int64_t position) const;

  const std::shared_ptr<const Model> model_;
  const int64_t vocab_size_;        // of the sequences
  const int64_t draft_vocab_size_;  // of the model's logits
  KvCache kv_;
  BlockPool pool_;
  ModelRunner runner_;
  std::vector<Text*> texts_;
  uint64_t calls_ = 0;

  // Scratch of one call.
  std::vector<Rows> rows_;
  std::vector<TokenId> step_tokens_;
  std::vector<int32_t> positions_;
  std::vector<AttentionSlice> slices_;
  std::vector<int32_t> logit_rows_;
  std::vector<float> padded_;  // logits of the sequences' vocabulary
  SamplerScratch sampling_;
};

}  // namespace tandem::engine
