#include "engine/kv/kv_cache.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

TEST(KvCache, LayersKeysAndValuesDoNotOverlap) {
  KvCache kv({.layers = {{192, 128}, {}, {64, 64}}, .n_blocks = 4});

  EXPECT_EQ(kv.shape().block_bytes(), 448);
  EXPECT_EQ(kv.bytes(), 4 * 448);
  EXPECT_EQ(kv.values(0) - kv.keys(0), 4 * 192);
  EXPECT_EQ(kv.keys(2) - kv.values(0), 4 * 128);
  EXPECT_EQ(kv.values(2) - kv.keys(2), 4 * 64);
}

TEST(KvCache, CopyBlockCopiesEveryLayerAndNothingElse) {
  const std::vector<KvCache::Layer> layers = {{64, 64}, {}, {192, 128}};
  KvCache kv({.layers = layers, .n_blocks = 3});
  for (const int64_t layer : {0, 2}) {
    const KvCache::Layer& bytes = layers[static_cast<size_t>(layer)];
    std::memset(kv.keys(layer), static_cast<int>(10 + layer), static_cast<size_t>(bytes.key_bytes));
    std::memset(kv.values(layer), static_cast<int>(20 + layer),
                static_cast<size_t>(bytes.value_bytes));
  }

  kv.CopyBlock(BlockId{0}, BlockId{2});

  for (const int64_t layer : {0, 2}) {
    const auto [key_bytes, value_bytes, table] = layers[static_cast<size_t>(layer)];
    EXPECT_EQ(table, 0u);
    for (int64_t i = 0; i < 3 * key_bytes; ++i) {
      const bool copied = i / key_bytes != 1;
      ASSERT_EQ(kv.keys(layer)[i], std::byte(copied ? 10 + layer : 0)) << layer << " " << i;
    }
    for (int64_t i = 0; i < 3 * value_bytes; ++i) {
      const bool copied = i / value_bytes != 1;
      ASSERT_EQ(kv.values(layer)[i], std::byte(copied ? 20 + layer : 0)) << layer << " " << i;
    }
  }
}

// Layers of different tables may share memory, because a block belongs to one table.
TEST(KvCache, LayersOfOneTableNeverOverlapAndABlockIsAsLargeAsItsLargestTable) {
  const std::vector<KvCache::Layer> layers = {{128, 128, 0}, {64, 64, 1}, {64, 64, 1}, {},
                                              {64, 128, 1},  {128, 64, 2}};
  const int64_t n_blocks = 3;
  KvCache kv({.layers = layers,
              .n_blocks = n_blocks,
              .windows = {{}, KvWindow::Sliding(32), KvWindow::Sliding(32)}});

  EXPECT_EQ(kv.shape().block_bytes(), 64 + 64 + 64 + 64 + 64 + 128) << "of table 1";
  for (size_t table = 0; table < 3; ++table) {
    std::vector<int> owners(static_cast<size_t>(kv.bytes()), 0);
    const auto mark = [&](const std::byte* base, int64_t stride, int64_t bytes) {
      for (int64_t block = 0; block < n_blocks; ++block) {
        for (int64_t i = 0; i < bytes; ++i) {
          const auto at = static_cast<size_t>(base + block * stride + i - kv.keys(3));
          ASSERT_LT(at, owners.size());
          ++owners[at];
        }
      }
    };
    for (size_t i = 0; i < layers.size(); ++i) {
      const auto layer = static_cast<int64_t>(i);
      if (layers[i].table != table || layers[i].key_bytes == 0) continue;
      mark(kv.keys(layer), kv.key_stride(layer), layers[i].key_bytes);
      mark(kv.values(layer), kv.value_stride(layer), layers[i].value_bytes);
    }
    EXPECT_EQ(*std::max_element(owners.begin(), owners.end()), 1) << "table " << table;
  }
}

TEST(KvCache, DiscardedBlocksAreZeroAndCanBeWrittenAgain) {
  for (const int64_t n_blocks : {4, 1 << 16}) {  // 1 KiB and 16 MiB
    KvCache kv({.layers = {{64, 64}, {64, 64}}, .n_blocks = n_blocks});
    std::memset(kv.keys(0), 7, static_cast<size_t>(kv.bytes()));
    kv.Discard();
    for (int64_t i = 0; i < kv.bytes(); i += 64) ASSERT_EQ(kv.keys(0)[i], std::byte{0}) << i;
    kv.values(1)[0] = std::byte{9};
    EXPECT_EQ(kv.values(1)[0], std::byte{9});
  }
}

// Pages of the cache that are in memory.
int64_t ResidentBytes(KvCache& kv) {
  const auto page = static_cast<size_t>(::getpagesize());
  std::vector<unsigned char> pages((static_cast<size_t>(kv.bytes()) + page - 1) / page);
  EXPECT_EQ(::mincore(kv.keys(0), static_cast<size_t>(kv.bytes()), pages.data()), 0);
  return static_cast<int64_t>(page) *
         std::count_if(pages.begin(), pages.end(), [](unsigned char at) { return (at & 1) != 0; });
}

TEST(KvCache, DiscardedRangesReturnTheirPagesAndKeepTheirNeighbours) {
  constexpr int64_t kItem = 3000;  // pages are shared
  constexpr int64_t kBlocks = 2000;
  KvCache kv({.layers = {{kItem, kItem}, {kItem, kItem}}, .n_blocks = kBlocks});
  std::vector<std::byte> block(static_cast<size_t>(kv.shape().block_bytes()), std::byte{7});
  for (uint32_t i = 0; i < kBlocks; ++i) kv.WriteBlock(BlockId{i}, block);
  const int64_t before = ResidentBytes(kv);
  EXPECT_GE(before, kv.bytes());
  kv.Discard(0, 500);
  kv.Discard(501, 999);
  kv.Discard(1999, 1);
  kv.Discard(3, 0);
  // All but the two pages at the ends of each range.
  const int64_t returned = 1499 * kv.shape().block_bytes();
  EXPECT_LE(ResidentBytes(kv), before - returned + 4 * 3 * 2 * ::getpagesize());
  std::vector<std::byte> read(block.size());
  for (const uint32_t kept : {500u, 1500u, 1998u}) {
    kv.ReadBlock(BlockId{kept}, read);
    EXPECT_EQ(read, block) << kept;
  }
  kv.WriteBlock(BlockId{700}, block);
  kv.ReadBlock(BlockId{700}, read);
  EXPECT_EQ(read, block);
}

TEST(KvCache, AnImpossibleSizeIsAnErrorNotAnAllocation) {
  constexpr int64_t kHuge = int64_t{1} << 62;

  EXPECT_THROW(KvCache({.layers = {{kHuge, 1}}, .n_blocks = 4}), Error);
  EXPECT_THROW(KvCache({.layers = {{kHuge, kHuge}, {1, 1}}, .n_blocks = 1}), Error);
}

}  // namespace
}  // namespace tandem::engine
