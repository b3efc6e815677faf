#include "engine/kv/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "engine/base/error.h"
#include "engine/kv/block_pool.h"

namespace tandem::engine {
namespace {

std::vector<TokenId> Tokens(int n, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<BlockId> Blocks(std::initializer_list<uint32_t> values) {
  std::vector<BlockId> blocks;
  for (const uint32_t value : values) blocks.push_back(BlockId{value});
  return blocks;
}

TEST(PrefixIndex, MatchLeavesAtLeastOneTokenToCompute) {
  PrefixIndex index(Sha256Digest{});
  index.Insert(Tokens(48), Blocks({5, 6, 7}), "");

  EXPECT_EQ(index.Match(Tokens(49), ""), Blocks({5, 6, 7}));
  EXPECT_EQ(index.Match(Tokens(48), ""), Blocks({5, 6}));
  EXPECT_EQ(index.Match(Tokens(17), ""), Blocks({5}));
  EXPECT_TRUE(index.Match(Tokens(16), "").empty());
  EXPECT_TRUE(index.Match({}, "").empty());
}

TEST(PrefixIndex, ADifferentTokenEndsTheMatchThereAndThereafter) {
  PrefixIndex index(Sha256Digest{});
  index.Insert(Tokens(64), Blocks({0, 1, 2, 3}), "");
  std::vector<TokenId> other = Tokens(65);
  other[20] = 999;

  EXPECT_EQ(index.Match(other, ""), Blocks({0}))
      << "blocks 2 and 3 hold equal tokens, other context";
}

TEST(PrefixIndex, AnotherSaltSharesNothing) {
  Sha256Digest salt{};
  salt[0] = 1;
  PrefixIndex index(Sha256Digest{}), other(salt);
  index.Insert(Tokens(16), Blocks({0}), "");
  other.Insert(Tokens(16), Blocks({1}), "");

  EXPECT_EQ(index.Match(Tokens(17), ""), Blocks({0}));
  EXPECT_EQ(other.Match(Tokens(17), ""), Blocks({1}));
}

TEST(PrefixIndex, VariantsShareNothing) {
  PrefixIndex index(Sha256Digest{});
  index.Insert(Tokens(32), Blocks({0, 1}), "");
  index.Insert(Tokens(16), Blocks({2}), "adapter");
  index.Insert(Tokens(32), Blocks({2, 3}), "adapter");  // as a growing sequence does

  EXPECT_EQ(index.Match(Tokens(33), ""), Blocks({0, 1}));
  EXPECT_EQ(index.Match(Tokens(33), "adapter"), Blocks({2, 3}));
  EXPECT_TRUE(index.Match(Tokens(33), "other").empty());
}

TEST(PrefixIndex, AnIndexedPrefixKeepsItsOldBlock) {
  PrefixIndex index(Sha256Digest{});
  index.Insert(Tokens(16), Blocks({0}), "");

  const auto indexed = index.Insert(Tokens(32), Blocks({8, 9}), "");

  EXPECT_EQ(indexed, Blocks({9}));
  EXPECT_EQ(index.Match(Tokens(33), ""), Blocks({0, 9}));
  EXPECT_FALSE(index.Contains(BlockId{8}));
}

TEST(PrefixIndex, ForgettingABlockEndsMatchesBeforeIt) {
  PrefixIndex index(Sha256Digest{});
  index.Insert(Tokens(48), Blocks({0, 1, 2}), "");

  index.Forget(BlockId{1});

  EXPECT_EQ(index.Match(Tokens(49), ""), Blocks({0}));
  EXPECT_EQ(index.size(), 2);
  index.Insert(Tokens(32), Blocks({0, 7}), "");
  EXPECT_EQ(index.Match(Tokens(49), ""), Blocks({0, 7, 2})) << "the follower is reachable again";
}

TEST(PrefixIndex, ReusingAnIndexedBlockWithoutForgettingIsOurBug) {
  PrefixIndex index(Sha256Digest{});
  index.Insert(Tokens(16), Blocks({0}), "");

  EXPECT_THROW(index.Insert(Tokens(16, 100), Blocks({0}), ""), Error);
  EXPECT_THROW(index.Insert(Tokens(15), Blocks({1}), ""), Error) << "a block that is not full";
}

// Pool and index together, as the scheduler uses them; sequences over a tiny alphabet share
// prefixes. The test tracks the real contents of each block, and every match must agree.
TEST(PrefixIndexProperty, MatchesHoldExactlyTheTokensTheyPromise) {
  constexpr size_t kLength = kTokensPerBlock;
  int64_t matched_blocks = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    BlockPool pool(12);
    PrefixIndex index(Sha256Digest{});
    std::map<uint32_t, std::vector<TokenId>> content;  // block -> all tokens up to its end
    std::vector<std::vector<BlockId>> running;

    for (int step = 0; step < 300; ++step) {
      if (!running.empty() && random() % 2 == 0) {
        const size_t which = random() % running.size();
        for (size_t i = running[which].size(); i-- > 0;) pool.Release(running[which][i]);
        running.erase(running.begin() + static_cast<ptrdiff_t>(which));
        continue;
      }
      std::vector<TokenId> tokens;
      const size_t n_blocks = 1 + random() % 4;
      for (size_t i = 0; i < n_blocks; ++i) {
        tokens.insert(tokens.end(), kLength, static_cast<TokenId>(random() % 2));
      }
      tokens.push_back(7);

      std::vector<BlockId> blocks = index.Match(tokens, "");
      ASSERT_LT(blocks.size() * kLength, tokens.size());
      for (size_t i = 0; i < blocks.size(); ++i) {
        const auto end = tokens.begin() + static_cast<ptrdiff_t>((i + 1) * kLength);
        ASSERT_EQ(content[blocks[i].value], std::vector<TokenId>(tokens.begin(), end));
      }
      matched_blocks += static_cast<int64_t>(blocks.size());
      for (const BlockId block : blocks) pool.AddRef(block);
      while (blocks.size() < n_blocks) {
        const auto allocation = pool.TryAllocate();
        if (!allocation) break;
        ASSERT_EQ(allocation->evicted_cached, index.Contains(allocation->block));
        if (allocation->evicted_cached) index.Forget(allocation->block);
        const auto end = tokens.begin() + static_cast<ptrdiff_t>((blocks.size() + 1) * kLength);
        content[allocation->block.value] = std::vector<TokenId>(tokens.begin(), end);
        blocks.push_back(allocation->block);
      }
      for (const BlockId block : index.Insert(tokens, blocks, "")) pool.SetCached(block, true);
      running.push_back(blocks);
    }
    for (const auto& blocks : running) {
      for (const BlockId block : blocks) pool.Release(block);
    }
    ASSERT_EQ(pool.num_free(), pool.capacity_blocks());
  }
  EXPECT_GT(matched_blocks, 1000) << "the traces never shared anything";
}

}  // namespace
}  // namespace tandem::engine
