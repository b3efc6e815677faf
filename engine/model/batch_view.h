#pragma once

#include <cstdint>
#include <span>

#include "engine/base/ids.h"
#include "engine/ops/attention.h"
#include "engine/ops/recurrence.h"

namespace tandem::engine {

class Adapter;

// Adds the final hidden states (after the final norm, before the head) of adjacent rows to `sum`
// [hidden_dim], in row order. A text's sum therefore does not depend on how chunks split it.
struct HiddenSum {
  int64_t first_row = 0;
  int64_t n_rows = 0;
  std::span<double> sum;
};

// The state of a slice's sequence in layers with state (StateCache): read unless the slice begins
// at position 0, and overwritten with the state after its last row.
struct SliceState {
  float* state = nullptr;
  std::span<const StateSave> saves = {};  // copies of the state at borders within the slice
};

// The rows of one step: runs of consecutive positions of several sequences. Adjacent slices of one
// adapter run through it together, which is faster. Results do not depend on the order, bit for
// bit.
struct BatchView {
  std::span<const TokenId> tokens;         // [rows]
  std::span<const int32_t> positions;      // [rows]
  std::span<const AttentionSlice> slices;  // cover the rows in order
  std::span<const int32_t> logit_rows;     // ascending; only these reach the head
  // By slice; null for the base model alone. Empty: no slice has an adapter.
  std::span<const Adapter* const> adapters = {};
  std::span<const HiddenSum> hidden_sums = {};  // ascending, without overlap
  std::span<const SliceState> states = {};      // by slice; empty for models without state
  // For KV caches of several tables: the slices again, with the blocks of tables 1, 2, … one table
  // after the other. Those in `slices` are of table 0.
  std::span<const AttentionSlice> further_tables = {};
};

}  // namespace tandem::engine
