#include "engine/kv/block_table.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tandem::engine {
namespace {

// Walks the positions of every step, for all small windows, chunks and beginnings.
TEST(BlockTable, MostBlocksIsWhatTheWorstStepHolds) {
  constexpr int64_t kLength = 90;
  for (const int64_t window : {0, 1, 2, 15, 16, 17, 33, 50, 200}) {
    for (const int64_t chunk : {1, 2, 16, 17, 40, 1000}) {
      for (int64_t computed = 0; computed < kLength; ++computed) {
        int64_t worst = 0;
        for (int64_t at = computed; at < kLength; ++at) {
          const int64_t end = std::min(at + chunk, kLength);
          const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, at - window + 1);
          worst = std::max(worst, (end - 1) / kTokensPerBlock - first / kTokensPerBlock + 1);
        }
        const int64_t most = MostBlocks(window, computed, kLength, chunk);
        ASSERT_GE(most, worst) << window << " " << chunk << " " << computed;
        ASSERT_LE(most, worst + 1) << window << " " << chunk << " " << computed;
      }
    }
  }
}

TEST(BlockTable, TheFirstVisibleBlockHoldsTheFirstVisibleKey) {
  for (const int64_t window : {1, 16, 20}) {
    for (int64_t position = 0; position < 100; ++position) {
      EXPECT_EQ(FirstVisibleBlock(window, position),
                std::max<int64_t>(0, position - window + 1) / kTokensPerBlock);
    }
  }
  EXPECT_EQ(FirstVisibleBlock(0, 1000), 0);
}

}  // namespace
}  // namespace tandem::engine
