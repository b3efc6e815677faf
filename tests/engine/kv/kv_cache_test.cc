#include "engine/kv/kv_cache.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

TEST(KvCache, LayersKeysAndValuesDoNotOverlap) {
  KvCache kv({.n_layers = 2, .n_kv_heads = 3, .head_block_bytes = 64, .n_blocks = 4});

  EXPECT_EQ(kv.bytes(), 2 * 2 * 4 * 3 * 64);
  EXPECT_EQ(kv.block_stride_bytes(), 192);
  EXPECT_EQ(kv.values(0) - kv.keys(0), 4 * 192);
  EXPECT_EQ(kv.keys(1) - kv.values(0), 4 * 192);
}

TEST(KvCache, CopyBlockCopiesEveryLayerAndNothingElse) {
  KvCache kv({.n_layers = 2, .n_kv_heads = 1, .head_block_bytes = 64, .n_blocks = 3});
  for (int64_t layer = 0; layer < 2; ++layer) {
    std::memset(kv.keys(layer), static_cast<int>(10 + layer), 64);
    std::memset(kv.values(layer), static_cast<int>(20 + layer), 64);
  }

  kv.CopyBlock(BlockId{0}, BlockId{2});

  for (int64_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(std::memcmp(kv.keys(layer), kv.keys(layer) + 128, 64), 0);
    EXPECT_EQ(std::memcmp(kv.values(layer), kv.values(layer) + 128, 64), 0);
    EXPECT_EQ(kv.keys(layer)[64], std::byte{0});
  }
}

TEST(KvCache, DiscardedBlocksAreZeroAndCanBeWrittenAgain) {
  for (const int64_t n_blocks : {4, 1 << 16}) {  // 1 KiB and 16 MiB
    KvCache kv({.n_layers = 2, .n_kv_heads = 1, .head_block_bytes = 64, .n_blocks = n_blocks});
    std::memset(kv.keys(0), 7, static_cast<size_t>(kv.bytes()));
    kv.Discard();
    for (int64_t i = 0; i < kv.bytes(); i += 64) ASSERT_EQ(kv.keys(0)[i], std::byte{0}) << i;
    kv.values(1)[0] = std::byte{9};
    EXPECT_EQ(kv.values(1)[0], std::byte{9});
  }
}

TEST(KvCache, AnImpossibleSizeIsAnErrorNotAnAllocation) {
  const KvCache::Shape shape{
      .n_layers = 1 << 20, .n_kv_heads = 1 << 20, .head_block_bytes = 1 << 20, .n_blocks = 1 << 20};

  EXPECT_THROW(KvCache{shape}, Error);
}

}  // namespace
}  // namespace tandem::engine
