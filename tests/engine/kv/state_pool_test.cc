#include "engine/kv/state_pool.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tandem::engine {
namespace {

Sha256Digest KeyNumber(uint8_t n) {
  Sha256Digest key{};
  key.fill(n);
  return key;
}

TEST(StatePool, ASnapshotIsFoundUntilItsSlotIsNeeded) {
  StatePool pool(2);
  const StateId first = *pool.TryAllocate();
  pool.Publish(KeyNumber(1), first);
  pool.Release(first);

  EXPECT_EQ(pool.Find(KeyNumber(1)), first);
  EXPECT_NE(*pool.TryAllocate(), first);
  EXPECT_EQ(pool.Find(KeyNumber(1)), first);
  EXPECT_EQ(*pool.TryAllocate(), first);
  EXPECT_EQ(pool.Find(KeyNumber(1)), std::nullopt);
  EXPECT_EQ(pool.TryAllocate(), std::nullopt);
}

TEST(StatePool, TheSnapshotUsedLeastRecentlyGoesFirst) {
  StatePool pool(2);
  const StateId old = *pool.TryAllocate(), young = *pool.TryAllocate();
  pool.Publish(KeyNumber(1), old);
  pool.Publish(KeyNumber(2), young);
  pool.Release(old);
  pool.Release(young);
  pool.AddRef(old);
  pool.Release(old);

  EXPECT_EQ(*pool.TryAllocate(), young);
}

TEST(StatePool, OnlyASingleHolderOfNoSnapshotMayWrite) {
  StatePool pool(2);
  const StateId state = *pool.TryAllocate();
  EXPECT_TRUE(pool.MayWrite(state));

  pool.AddRef(state);
  EXPECT_FALSE(pool.MayWrite(state));
  pool.Release(state);
  pool.Publish(KeyNumber(1), state);
  EXPECT_FALSE(pool.MayWrite(state));
  pool.Forget(state);

  EXPECT_TRUE(pool.MayWrite(state));
  EXPECT_EQ(pool.Find(KeyNumber(1)), std::nullopt);
}

TEST(StatePool, ASecondSnapshotOfAPrefixIsNotKept) {
  StatePool pool(2);
  const StateId first = *pool.TryAllocate(), second = *pool.TryAllocate();
  pool.Publish(KeyNumber(1), first);
  pool.Publish(KeyNumber(1), second);

  EXPECT_EQ(pool.Find(KeyNumber(1)), first);
  EXPECT_TRUE(pool.MayWrite(second));
  EXPECT_EQ(pool.num_snapshots(), 1);
  pool.ForgetAll();
  EXPECT_EQ(pool.num_snapshots(), 0);
}

TEST(StateCache, CopiesWholeStatesAndNothingElse) {
  StateCache cache(5, 3);
  for (uint32_t slot = 0; slot < 3; ++slot) {
    for (int i = 0; i < 5; ++i) cache.At({slot})[i] = static_cast<float>(10 * slot) + i;
  }

  cache.Copy({2}, {0});

  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(cache.At({0})[i], 20 + i);
    EXPECT_EQ(cache.At({1})[i], 10 + i);
  }
  EXPECT_EQ(cache.bytes(), 60);
}

}  // namespace
}  // namespace tandem::engine
