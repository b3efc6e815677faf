#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/base/ids.h"
#include "engine/tensor/kv_block.h"

namespace tandem::engine {

// The blocks of one sequence for the layers of one window: position p is in block table[p / 16].
// Blocks that no later token sees are kNoBlock.
using BlockTable = std::vector<BlockId>;
inline constexpr BlockId kNoBlock{~uint32_t{0}};

inline int64_t BlocksFor(int64_t tokens) {
  return (tokens + kTokensPerBlock - 1) / kTokensPerBlock;
}

// The first block that a query at `position` or later reads. A query sees `window` keys, its own
// included; 0: all.
inline int64_t FirstVisibleBlock(int64_t window, int64_t position) {
  return window == 0 || position < window ? 0 : (position - window + 1) / kTokensPerBlock;
}

// The most blocks that a table holds at once while tokens [computed, length) are computed in steps
// of at most `chunk` tokens.
inline int64_t MostBlocks(int64_t window, int64_t computed, int64_t length, int64_t chunk) {
  const int64_t rest = BlocksFor(length) - FirstVisibleBlock(window, computed);
  if (window == 0) return rest;
  // These positions may begin at the end of a block.
  const int64_t positions = std::min(window, length) - 1 + std::min(chunk, length);
  return std::min(rest, BlocksFor(positions + kTokensPerBlock - 1));
}

// MostBlocks for all tokens of a sequence, summed over its tables.
inline int64_t MostBlocksOfSequence(const std::vector<int64_t>& windows, int64_t length,
                                    int64_t chunk) {
  int64_t blocks = 0;
  for (const int64_t window : windows) blocks += MostBlocks(window, 0, length, chunk);
  return blocks;
}

}  // namespace tandem::engine
