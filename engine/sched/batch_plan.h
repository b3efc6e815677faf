#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/ids.h"
#include "engine/io/sha256.h"
#include "engine/kv/state_cache.h"
#include "engine/sched/sequence.h"

namespace tandem::engine {

// Rows of one sequence in one step: tokens [first_position, first_position + n_tokens).
struct PlannedSlice {
  Sequence* sequence = nullptr;
  int64_t first_position = 0;
  int64_t n_tokens = 0;
  int64_t n_draft = 0;    // of those, the last ones are guesses from Sequence::draft
  bool samples = false;   // logits of the last row, and of each row that a guess follows, are drawn
  bool forks = false;     // …of every choice: the shared prompt is complete
  size_t first_save = 0;  // in BatchPlan::saves
  size_t n_saves = 0;

  bool decodes() const { return n_tokens - n_draft == 1 && samples; }
};

// Copies `from` to `to` in every layer before any row is computed.
struct BlockCopy {
  BlockId from;
  BlockId to;
};

// Copies a state before any row is computed.
struct StateCopy {
  StateId from;
  StateId to;
};

// A snapshot to be: the state after the slice's sequence's first `position` tokens.
struct PlannedSave {
  int64_t position = 0;
  StateId state = {};
  Sha256Digest key{};     // of that prefix
  bool replaces = false;  // the sequence's previous snapshot of this kind
};

// The work of one step. Valid until the scheduler is called for anything else.
struct BatchPlan {
  std::vector<BlockCopy> copies;        // in this order
  std::vector<StateCopy> state_copies;  // in this order
  std::vector<PlannedSave> saves;       // by slice, ascending
  std::vector<PlannedSlice> slices;     // decodes first, then prompt chunks
  std::vector<Sequence*> preempted;     // lost their blocks; recomputed later
  int64_t rows = 0;
  // Without slices: the archive has more of a prefix than one plan takes. Plan again at once.
  bool awaits_archive = false;
};

}  // namespace tandem::engine
