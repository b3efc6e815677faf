#pragma once

#include <cstdint>
#include <span>

#include "engine/base/ids.h"
#include "engine/ops/attention.h"

namespace tandem::engine {

class Adapter;

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
};

}  // namespace tandem::engine
