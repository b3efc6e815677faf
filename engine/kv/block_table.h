#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/base/ids.h"
#include "engine/kv/kv_window.h"
#include "engine/tensor/kv_block.h"

namespace tandem::engine {

// The blocks of one sequence for the layers of one window: position p is in block table[p / 16].
// Blocks that no later token sees are kNoBlock.
using BlockTable = std::vector<BlockId>;
inline constexpr BlockId kNoBlock{~uint32_t{0}};

inline int64_t BlocksFor(int64_t tokens) {
  return (tokens + kTokensPerBlock - 1) / kTokensPerBlock;
}

// The first block that a query at `position` or later reads.
inline int64_t FirstVisibleBlock(const KvWindow& window, int64_t position) {
  return window.FirstVisible(position) / kTokensPerBlock;
}

// The most blocks that a table holds at once while tokens [computed, length) are computed in steps
// of at most `step` tokens.
inline int64_t MostBlocks(const KvWindow& window, int64_t computed, int64_t length, int64_t step) {
  const int64_t rest = BlocksFor(length) - FirstVisibleBlock(window, computed);
  if (window.keeps_all()) return rest;
  const int64_t positions = std::min(window.tokens, length) - 1 + std::min(step, length);
  // These positions may begin at the end of a block, unless every chunk begins with a block.
  const bool is_aligned =
      window.kind == KvWindow::Kind::kChunk && window.tokens % kTokensPerBlock == 0;
  return std::min(rest, BlocksFor(positions + (is_aligned ? 0 : kTokensPerBlock - 1)));
}

// MostBlocks for all tokens of a sequence, summed over its tables.
inline int64_t MostBlocksOfSequence(const std::vector<KvWindow>& windows, int64_t length,
                                    int64_t step) {
  int64_t blocks = 0;
  for (const KvWindow& window : windows) blocks += MostBlocks(window, 0, length, step);
  return blocks;
}

}  // namespace tandem::engine
