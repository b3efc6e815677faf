#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/ids.h"
#include "engine/sched/sequence.h"

namespace tandem::engine {

// Rows of one sequence in one step: tokens [first_position, first_position + n_tokens).
struct PlannedSlice {
  Sequence* sequence = nullptr;
  int64_t first_position = 0;
  int64_t n_tokens = 0;
  bool samples = false;  // the last row's logits choose the next token
  bool forks = false;    // …of every choice: the shared prompt is complete

  bool decodes() const { return n_tokens == 1 && samples; }
};

// Copies `from` to `to` in every layer before any row is computed.
struct BlockCopy {
  BlockId from;
  BlockId to;
};

// The work of one step. Valid until the scheduler is called for anything else.
struct BatchPlan {
  std::vector<BlockCopy> copies;     // in this order
  std::vector<PlannedSlice> slices;  // decodes first, then prompt chunks
  std::vector<Sequence*> preempted;  // lost their blocks; recomputed later
  int64_t rows = 0;
};

}  // namespace tandem::engine
