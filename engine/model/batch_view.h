#pragma once

#include <cstdint>
#include <span>

#include "engine/base/ids.h"
#include "engine/ops/attention.h"

namespace tandem::engine {

class Adapter;

// The rows of one step: runs of consecutive positions of several sequences. Slices of one adapter
// are best put side by side: they go through it together. No bit depends on their order.
struct BatchView {
  std::span<const TokenId> tokens;         // [rows]
  std::span<const int32_t> positions;      // [rows]
  std::span<const AttentionSlice> slices;  // cover the rows in order
  std::span<const int32_t> logit_rows;     // ascending; only these reach the head
  // Of each slice, null for the base model's own; empty: all are.
  std::span<const Adapter* const> adapters = {};
};

}  // namespace tandem::engine
