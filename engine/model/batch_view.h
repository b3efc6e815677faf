#pragma once

#include <cstdint>
#include <span>

#include "engine/base/ids.h"
#include "engine/ops/attention.h"

namespace tandem::engine {

class Adapter;

// Adds the final hidden states (after the final norm, before the head) of adjacent rows to `sum`
// [hidden_dim], in row order. A text's sum therefore does not depend on how chunks split it.
struct HiddenSum {
  int64_t first_row = 0;
  int64_t n_rows = 0;
  std::span<double> sum;
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
};

}  // namespace tandem::engine
