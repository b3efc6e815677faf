#pragma once

#include <cstdint>
#include <span>

#include "engine/base/ids.h"
#include "engine/ops/attention.h"

namespace tandem::engine {

// The rows of one step: runs of consecutive positions of several sequences.
struct BatchView {
  std::span<const TokenId> tokens;         // [rows]
  std::span<const int32_t> positions;      // [rows]
  std::span<const AttentionSlice> slices;  // cover the rows in order
  std::span<const int32_t> logit_rows;     // ascending; only these reach the head
};

}  // namespace tandem::engine
