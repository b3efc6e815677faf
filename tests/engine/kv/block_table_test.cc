#include "engine/kv/block_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tandem::engine {
namespace {

std::vector<KvWindow> SmallWindows() {
  std::vector<KvWindow> windows = {{}};
  for (const int64_t tokens : {1, 2, 15, 16, 17, 33, 50, 200}) {
    windows.push_back(KvWindow::Sliding(tokens));
  }
  for (const int64_t tokens : {16, 32, 48, 64, 208}) windows.push_back(KvWindow::Chunk(tokens));
  return windows;
}

std::string NameOf(const KvWindow& window) {
  const char* const kinds[] = {"all", "sliding", "chunk"};
  return std::string(kinds[static_cast<size_t>(window.kind)]) + " " + std::to_string(window.tokens);
}

// The definition of each kind, position by position.
bool Sees(const KvWindow& window, int64_t query, int64_t key) {
  if (key > query) return false;
  if (window.kind == KvWindow::Kind::kSliding) return query - key < window.tokens;
  return window.kind == KvWindow::Kind::kAll || query / window.tokens == key / window.tokens;
}

int64_t FirstSeen(const KvWindow& window, int64_t query) {
  int64_t first = 0;
  while (!Sees(window, query, first)) ++first;
  return first;
}

// Walks the positions of every step, for all small windows, steps and beginnings.
TEST(BlockTable, MostBlocksIsWhatTheWorstStepHolds) {
  constexpr int64_t kLength = 90;
  for (const KvWindow& window : SmallWindows()) {
    for (const int64_t step : {1, 2, 16, 17, 40, 1000}) {
      for (int64_t computed = 0; computed < kLength; ++computed) {
        int64_t worst = 0;
        for (int64_t at = computed; at < kLength; ++at) {
          const int64_t end = std::min(at + step, kLength);
          const int64_t first = FirstSeen(window, at);
          worst = std::max(worst, (end - 1) / kTokensPerBlock - first / kTokensPerBlock + 1);
        }
        const int64_t most = MostBlocks(window, computed, kLength, step);
        ASSERT_GE(most, worst) << NameOf(window) << " " << step << " " << computed;
        ASSERT_LE(most, worst + 1) << NameOf(window) << " " << step << " " << computed;
      }
    }
  }
}

TEST(BlockTable, TheFirstVisibleBlockHoldsTheFirstVisibleKey) {
  for (const KvWindow& window : SmallWindows()) {
    for (int64_t position = 0; position < 100; ++position) {
      ASSERT_EQ(window.FirstVisible(position), FirstSeen(window, position)) << NameOf(window);
      ASSERT_EQ(FirstVisibleBlock(window, position), FirstSeen(window, position) / kTokensPerBlock)
          << NameOf(window);
    }
  }
}

// A table of a covering window may hold the layers of the other.
TEST(KvWindow, CoversWhatSeesNoMore) {
  for (const KvWindow& wide : SmallWindows()) {
    for (const KvWindow& narrow : SmallWindows()) {
      bool covers = true;
      // Longer than every window, so that each one's limit shows.
      for (int64_t position = 0; position < 700; ++position) {
        covers = covers && wide.FirstVisible(position) <= narrow.FirstVisible(position);
      }
      EXPECT_EQ(wide.Covers(narrow), covers) << NameOf(wide) << ", " << NameOf(narrow);
    }
  }
}

}  // namespace
}  // namespace tandem::engine
