#include "engine/kv/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <vector>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

TEST(BlockPool, HandsOutEveryBlockOnceAndThenNothing) {
  BlockPool pool(3);

  std::vector<uint32_t> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(pool.TryAllocate()->block.value);
  const auto fourth = pool.TryAllocate();

  EXPECT_EQ(blocks, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_FALSE(fourth.has_value());
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(BlockPool, ReleaseReturnsSharedBlockOnlyAtLastReference) {
  BlockPool pool(1);
  const BlockId block = pool.TryAllocate()->block;
  pool.AddRef(block);

  pool.Release(block);
  const int64_t free_after_first = pool.num_free();
  pool.Release(block);

  EXPECT_EQ(free_after_first, 0);
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPool, ReusesUncachedBlocksBeforeCachedOnes) {
  BlockPool pool(3);
  for (int i = 0; i < 3; ++i) pool.TryAllocate();
  pool.SetCached(BlockId{0}, true);
  pool.SetCached(BlockId{1}, true);
  for (const uint32_t i : {1u, 0u, 2u}) pool.Release(BlockId{i});

  const auto first = pool.TryAllocate(), second = pool.TryAllocate(), third = pool.TryAllocate();

  EXPECT_EQ(first->block.value, 2u);
  EXPECT_FALSE(first->evicted_cached);
  EXPECT_EQ(second->block.value, 1u) << "the cached block released first goes first";
  EXPECT_TRUE(second->evicted_cached);
  EXPECT_EQ(third->block.value, 0u);
}

TEST(BlockPool, IdleBlocksAreFreeOnesThatWereTakenAndReleasedLongAgo) {
  BlockPool pool(5);
  for (int i = 0; i < 4; ++i) pool.TryAllocate();
  pool.SetCached(BlockId{1}, true);
  pool.Release(BlockId{1});
  pool.Age();
  pool.Release(BlockId{2});
  EXPECT_TRUE(pool.Idle(2, 10).empty());
  pool.Age();
  EXPECT_EQ(pool.Idle(2, 10), std::vector<BlockId>{BlockId{1}});
  pool.Age();
  EXPECT_EQ(pool.Idle(2, 1), std::vector<BlockId>{BlockId{1}});
  const std::vector<BlockId> idle = pool.Idle(2, 10);
  EXPECT_EQ(idle, (std::vector<BlockId>{BlockId{1}, BlockId{2}}));
  for (const BlockId block : idle) pool.GiveBack(block);
  EXPECT_FALSE(pool.is_cached(BlockId{1}));
  EXPECT_TRUE(pool.Idle(2, 10).empty());
  EXPECT_EQ(pool.num_free(), 3);
  const std::vector<BlockPool::Range> ranges = pool.RangesAround(idle);
  ASSERT_EQ(ranges.size(), 1u);
  EXPECT_EQ(ranges[0].first, 1);
  EXPECT_EQ(ranges[0].n, 2);
  // Their neighbour goes, too: one range, with the block that was never taken.
  pool.Release(BlockId{3});
  pool.GiveBack(BlockId{3});
  const std::vector<BlockPool::Range> wider = pool.RangesAround({BlockId{3}});
  ASSERT_EQ(wider.size(), 1u);
  EXPECT_EQ(wider[0].first, 1);
  EXPECT_EQ(wider[0].n, 4);
}

// A use in between begins the time anew.
TEST(BlockPool, ARevivedBlockIsNotIdle) {
  BlockPool pool(1);
  const BlockId block = pool.TryAllocate()->block;
  pool.SetCached(block, true);
  pool.Release(block);
  for (int i = 0; i < 3; ++i) pool.Age();
  pool.AddRef(block);
  EXPECT_TRUE(pool.Idle(2, 10).empty());
  pool.Release(block);
  EXPECT_TRUE(pool.Idle(2, 10).empty());
}

TEST(BlockPool, AddRefRevivesAFreeCachedBlock) {
  BlockPool pool(2);
  const BlockId block = pool.TryAllocate()->block;
  pool.SetCached(block, true);
  pool.Release(block);

  pool.AddRef(block);

  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.references(block), 1);
  EXPECT_NE(pool.TryAllocate()->block, block);
}

TEST(BlockPool, MisuseIsReportedAsOurBug) {
  BlockPool pool(2);
  const BlockId block = pool.TryAllocate()->block;
  pool.Release(block);

  EXPECT_THROW(pool.Release(block), Error) << "released twice";
  EXPECT_THROW(pool.AddRef(block), Error) << "free and not cached";
  EXPECT_THROW(pool.Release(BlockId{2}), Error) << "no such block";
  EXPECT_THROW(BlockPool(-1), Error);
}

// The oracle: the same contract with two lists.
struct SimplePool {
  std::vector<int32_t> references;
  std::vector<bool> cached;
  std::list<uint32_t> free_uncached;  // last released first
  std::list<uint32_t> free_cached;    // first released first

  explicit SimplePool(uint32_t n) : references(n), cached(n) {
    for (uint32_t i = 0; i < n; ++i) free_uncached.push_back(i);
  }
  void Free(uint32_t block) {
    if (cached[block]) {
      free_cached.push_back(block);
    } else {
      free_uncached.push_front(block);
    }
  }
  void Take(uint32_t block) {
    free_uncached.remove(block);
    free_cached.remove(block);
  }
  int64_t num_free() const {
    return static_cast<int64_t>(free_uncached.size() + free_cached.size());
  }
};

TEST(BlockPoolProperty, BehavesLikeTwoListsOnRandomTraces) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const uint32_t n = 1 + random() % 24;
    BlockPool pool(n);
    SimplePool simple(n);

    for (int step = 0; step < 500; ++step) {
      const uint32_t block = random() % n;
      switch (random() % 4) {
        case 0: {
          const auto got = pool.TryAllocate();
          ASSERT_EQ(got.has_value(), simple.num_free() > 0);
          if (!got) break;
          const bool evicts = simple.free_uncached.empty();
          const uint32_t want = evicts ? simple.free_cached.front() : simple.free_uncached.front();
          ASSERT_EQ(got->block.value, want);
          ASSERT_EQ(got->evicted_cached, evicts);
          simple.Take(want);
          simple.cached[want] = false;
          simple.references[want] = 1;
          break;
        }
        case 1:
          if (simple.references[block] == 0 && !simple.cached[block]) break;
          pool.AddRef(BlockId{block});
          if (simple.references[block]++ == 0) simple.Take(block);
          break;
        case 2:
          if (simple.references[block] == 0) break;
          pool.Release(BlockId{block});
          if (--simple.references[block] == 0) simple.Free(block);
          break;
        case 3: {
          const bool cached = random() % 2 == 0;
          pool.SetCached(BlockId{block}, cached);
          if (simple.cached[block] == cached) break;
          simple.cached[block] = cached;
          if (simple.references[block] > 0) break;
          simple.Take(block);
          simple.Free(block);
          break;
        }
      }
      // Conservation: every block is either free or referenced, and counted once.
      int64_t used = 0;
      for (uint32_t i = 0; i < n; ++i) {
        ASSERT_EQ(pool.references(BlockId{i}), simple.references[i]);
        ASSERT_EQ(pool.is_cached(BlockId{i}), simple.cached[i]);
        used += simple.references[i] > 0;
      }
      ASSERT_EQ(pool.num_free(), simple.num_free());
      ASSERT_EQ(pool.num_free() + used, pool.capacity_blocks());
    }
  }
}

}  // namespace
}  // namespace tandem::engine
