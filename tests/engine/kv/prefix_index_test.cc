#include "engine/kv/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <string>
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

// Blocks of the longest match, in table 0.
std::vector<BlockId> Match(const PrefixIndex& index, const std::vector<TokenId>& tokens,
                           const std::string& variant) {
  std::vector<Sha256Digest> keys = index.Keys(tokens, variant);
  keys.resize(static_cast<size_t>(index.Longest(keys)));
  return index.Blocks(keys)[0];
}

// Indexes the first blocks of `tokens`; returns the newly indexed ones.
std::vector<BlockId> Insert(PrefixIndex& index, const std::vector<TokenId>& tokens,
                            const std::vector<BlockId>& blocks, const std::string& variant,
                            size_t table = 0) {
  std::vector<BlockId> indexed;
  PrefixKey point;
  for (size_t i = 0; i < blocks.size(); ++i) {
    index.Advance(tokens, variant, static_cast<int64_t>(i) + 1, point);
    if (blocks[i] == kNoBlock) continue;
    if (index.Insert(point.key, table, blocks[i])) indexed.push_back(blocks[i]);
  }
  return indexed;
}

TEST(PrefixIndex, KnownKeysAreNotComputedAgain) {
  PrefixIndex index(Sha256Digest{});
  Insert(index, Tokens(48), Blocks({5, 6, 7}), "");
  std::vector<Sha256Digest> known;
  const std::vector<Sha256Digest> keys = index.Keys(Tokens(49), "", known);
  EXPECT_EQ(keys.size(), 3u);
  EXPECT_EQ(known, keys);
  // Even where the tokens are others: the caller promises that they are the same.
  EXPECT_EQ(index.Keys(std::vector<TokenId>(65, 9), "", known), keys);
  EXPECT_EQ(known.size(), 4u);
  EXPECT_EQ(index.Keys(Tokens(33), "", known).size(), 2u);
}

TEST(PrefixIndex, NeedsAreTheBlocksOfTheLongestPrefixHereOrElsewhere) {
  PrefixIndex index(Sha256Digest{}, {KvWindow{}, KvWindow::Sliding(24)});
  std::vector<Sha256Digest> known;
  const std::vector<TokenId> tokens = Tokens(81);
  Insert(index, tokens, Blocks({0, 1, 2}), "");
  Insert(index, tokens, {kNoBlock, kNoBlock, kNoBlock, BlockId{9}}, "", 1);
  const auto all = [](const Sha256Digest&, size_t) { return true; };
  const PrefixIndex::Needs needs = index.NeedsOf(tokens, "", all, known);
  EXPECT_EQ(needs.present, Blocks({0, 1, 2, 9}));
  ASSERT_EQ(needs.lacks.size(), 3u);
  EXPECT_EQ(needs.lacks[0].table, 0u);
  EXPECT_EQ(needs.lacks[1].table, 0u);
  EXPECT_EQ(needs.lacks[2].table, 1u);
  EXPECT_EQ(needs.lacks[2].key, known[4]);
}

TEST(PrefixIndex, MatchLeavesAtLeastOneTokenToCompute) {
  PrefixIndex index(Sha256Digest{});
  Insert(index, Tokens(48), Blocks({5, 6, 7}), "");

  EXPECT_EQ(Match(index, Tokens(49), ""), Blocks({5, 6, 7}));
  EXPECT_EQ(Match(index, Tokens(48), ""), Blocks({5, 6}));
  EXPECT_EQ(Match(index, Tokens(17), ""), Blocks({5}));
  EXPECT_TRUE(Match(index, Tokens(16), "").empty());
  EXPECT_TRUE(Match(index, {}, "").empty());
}

TEST(PrefixIndex, ADifferentTokenEndsTheMatchThereAndThereafter) {
  PrefixIndex index(Sha256Digest{});
  Insert(index, Tokens(64), Blocks({0, 1, 2, 3}), "");
  std::vector<TokenId> other = Tokens(65);
  other[20] = 999;

  EXPECT_EQ(Match(index, other, ""), Blocks({0}))
      << "blocks 2 and 3 hold equal tokens, other context";
}

TEST(PrefixIndex, AnotherSaltSharesNothing) {
  Sha256Digest salt{};
  salt[0] = 1;
  PrefixIndex index(Sha256Digest{}), other(salt);
  Insert(index, Tokens(16), Blocks({0}), "");
  Insert(other, Tokens(16), Blocks({1}), "");

  EXPECT_EQ(Match(index, Tokens(17), ""), Blocks({0}));
  EXPECT_EQ(Match(other, Tokens(17), ""), Blocks({1}));
}

TEST(PrefixIndex, VariantsShareNothing) {
  PrefixIndex index(Sha256Digest{});
  Insert(index, Tokens(32), Blocks({0, 1}), "");
  Insert(index, Tokens(16), Blocks({2}), "adapter");
  Insert(index, Tokens(32), Blocks({2, 3}), "adapter");  // as a growing sequence does

  EXPECT_EQ(Match(index, Tokens(33), ""), Blocks({0, 1}));
  EXPECT_EQ(Match(index, Tokens(33), "adapter"), Blocks({2, 3}));
  EXPECT_TRUE(Match(index, Tokens(33), "other").empty());
}

TEST(PrefixIndex, AnIndexedPrefixKeepsItsOldBlock) {
  PrefixIndex index(Sha256Digest{});
  Insert(index, Tokens(16), Blocks({0}), "");

  const auto indexed = Insert(index, Tokens(32), Blocks({8, 9}), "");

  EXPECT_EQ(indexed, Blocks({9}));
  EXPECT_EQ(Match(index, Tokens(33), ""), Blocks({0, 9}));
  EXPECT_FALSE(index.Contains(BlockId{8}));
}

TEST(PrefixIndex, ForgettingABlockEndsMatchesBeforeIt) {
  PrefixIndex index(Sha256Digest{});
  Insert(index, Tokens(48), Blocks({0, 1, 2}), "");

  index.Forget(BlockId{1});

  EXPECT_EQ(Match(index, Tokens(49), ""), Blocks({0}));
  EXPECT_EQ(index.size(), 2);
  Insert(index, Tokens(32), Blocks({0, 7}), "");
  EXPECT_EQ(Match(index, Tokens(49), ""), Blocks({0, 7, 2})) << "the follower is reachable again";
}

TEST(PrefixIndex, ReusingAnIndexedBlockWithoutForgettingIsOurBug) {
  PrefixIndex index(Sha256Digest{});
  Insert(index, Tokens(16), Blocks({0}), "");

  EXPECT_THROW(Insert(index, Tokens(16, 100), Blocks({0}), ""), Error);
  EXPECT_THROW(Insert(index, Tokens(15), Blocks({1}), ""), Error) << "a block that is not full";
}

TEST(PrefixIndex, AMatchNeedsTheWindowOfItsNextTokenOnly) {
  PrefixIndex index(Sha256Digest{}, {{}, KvWindow::Sliding(20)});
  Insert(index, Tokens(80), Blocks({0, 1, 2, 3, 4}), "");
  // The blocks 10 and 11 are gone.
  std::vector<BlockId> windowed = Blocks({10, 11, 12, 13, 14});
  windowed[0] = windowed[1] = kNoBlock;
  Insert(index, Tokens(80), windowed, "", 1);

  // Position 64 sees positions from 45 on, position 48 sees 29 and position 32 sees 13.
  std::vector<Sha256Digest> keys = index.Keys(Tokens(81), "");
  ASSERT_EQ(keys.size(), 5u);
  EXPECT_EQ(index.Longest(keys), 5);
  const std::vector<BlockTable> tables = index.Blocks(keys);
  EXPECT_EQ(tables[0], Blocks({0, 1, 2, 3, 4}));
  EXPECT_EQ(tables[1][2], kNoBlock) << "position 80 does not see it";
  EXPECT_EQ(tables[1][3], BlockId{13});

  index.Forget(BlockId{14});
  EXPECT_EQ(index.Longest(keys), 4);
  index.Forget(BlockId{12});
  EXPECT_EQ(index.Longest(keys), 0);
  Insert(index, Tokens(16), Blocks({20}), "", 1);
  EXPECT_EQ(index.Longest(keys), 1);
}

// Nothing of a chunk's table is needed where a new chunk begins.
TEST(PrefixIndex, AMatchNeedsTheBlocksOfItsNextTokensChunkOnly) {
  PrefixIndex index(Sha256Digest{}, {{}, KvWindow::Chunk(32)});
  Insert(index, Tokens(80), Blocks({0, 1, 2, 3, 4}), "");
  const std::vector<Sha256Digest> keys = index.Keys(Tokens(81), "");
  ASSERT_EQ(keys.size(), 5u);

  EXPECT_EQ(index.Longest(keys), 4) << "position 64 begins a chunk, position 80 is inside it";
  EXPECT_EQ(index.Blocks(std::span(keys).first(4))[1], std::vector<BlockId>(4, kNoBlock));
  std::vector<BlockId> chunked(5, kNoBlock);
  chunked[4] = BlockId{14};
  Insert(index, Tokens(80), chunked, "", 1);
  EXPECT_EQ(index.Longest(keys), 5);
  EXPECT_EQ(index.Blocks(keys)[1], chunked);
}

TEST(PrefixIndex, WithoutATableThatKeepsAllAMatchMayBeginBehindAGap) {
  PrefixIndex index(Sha256Digest{}, {KvWindow::Sliding(17)});
  std::vector<BlockId> blocks(6, kNoBlock);
  blocks[4] = BlockId{4};
  blocks[5] = BlockId{5};
  Insert(index, Tokens(96), blocks, "");

  std::vector<BlockId> seen(6, kNoBlock);
  seen[5] = BlockId{5};
  EXPECT_EQ(Match(index, Tokens(97), ""), seen) << "position 96 sees positions from 80 on";
  EXPECT_TRUE(Match(index, Tokens(65), "").empty());
}

// The definition, for random holes: a prefix matches if every block that its next token sees is
// there.
TEST(PrefixIndexProperty, TheLongestMatchIsTheOneThatTheDefinitionNames) {
  std::mt19937 random(11);
  for (int round = 0; round < 400; ++round) {
    std::vector<KvWindow> windows;
    const size_t n_tables = 1 + random() % 3;
    for (size_t t = 0; t < n_tables; ++t) {
      const auto kind = random() % 4;
      const auto tokens = static_cast<int64_t>(1 + random() % 70);
      windows.push_back(kind == 0   ? KvWindow{}
                        : kind == 1 ? KvWindow::Chunk((tokens % 5 + 1) * kTokensPerBlock)
                                    : KvWindow::Sliding(tokens));
    }
    PrefixIndex index(Sha256Digest{}, windows);
    const std::vector<TokenId> tokens = Tokens(16 * 9 + 1);
    std::vector<std::vector<bool>> has(n_tables, std::vector<bool>(9));
    uint32_t next = 0;
    for (size_t t = 0; t < n_tables; ++t) {
      std::vector<BlockId> blocks(9, kNoBlock);
      for (size_t i = 0; i < 9; ++i) {
        has[t][i] = random() % 5 != 0;
        if (has[t][i]) blocks[i] = BlockId{next++};
      }
      Insert(index, tokens, blocks, "", t);
    }

    int64_t expected = 0;
    for (int64_t n = 1; n <= 9; ++n) {
      bool matches = true;
      for (size_t t = 0; t < n_tables; ++t) {
        for (int64_t p = 0; p < n * 16; ++p) {
          const bool seen = p >= windows[t].FirstVisible(n * 16);
          matches = matches && (!seen || has[t][static_cast<size_t>(p / 16)]);
        }
      }
      if (matches) expected = n;
    }
    EXPECT_EQ(index.Longest(index.Keys(tokens, "")), expected) << "round " << round;
  }
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

      std::vector<BlockId> blocks = Match(index, tokens, "");
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
      for (const BlockId block : Insert(index, tokens, blocks, "")) pool.SetCached(block, true);
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
