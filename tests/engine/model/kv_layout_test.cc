// Which layers share a table of the KV cache, and what that saves.

#include "engine/model/kv_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/kv/block_table.h"

namespace tandem::engine {
namespace {

AttentionSpec KeptLayer(int64_t window, int64_t n_kv_heads = 4, int64_t head_dim = 64) {
  return {.n_heads = n_kv_heads, .n_kv_heads = n_kv_heads, .head_dim = head_dim, .window = window};
}

// `windowed` layers of each window follow one full layer, until there are n.
std::vector<AttentionSpec> Interleaved(int n, int windowed, int64_t window) {
  std::vector<AttentionSpec> layers;
  for (int i = 0; i < n; ++i) {
    layers.push_back(KeptLayer((i + 1) % (windowed + 1) == 0 ? 0 : window));
  }
  return layers;
}

int64_t SequenceBytes(const KvCache::Shape& shape, int64_t length) {
  return MostBlocksOfSequence(shape.windows, length, 512) * shape.block_bytes();
}

TEST(KvLayout, LayersOfOneTableHaveItsWindow) {
  const std::vector<AttentionSpec> layers = Interleaved(34, 5, 1024);
  const KvCache::Shape shape = LayOutKv(layers, DType::kBF16, 131072);

  ASSERT_EQ(shape.layers.size(), layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ(shape.windows.at(shape.layers[i].table), WindowOf(layers[i])) << i;
  }
  EXPECT_EQ(shape.windows.front(), KvWindow{});
  EXPECT_LE(shape.windows.size(), 8u);
}

TEST(KvLayout, ALongTextOfFiveWindowedLayersInSixTakesAFifthOrLess) {
  for (const auto& [n, window] : {std::pair{26, 512}, {34, 1024}, {48, 1024}, {62, 1024}}) {
    const std::vector<AttentionSpec> layers = Interleaved(n, 5, window);
    const int64_t all = SequenceBytes(KvInOneTable(layers, DType::kBF16), 131072);
    const int64_t some = SequenceBytes(LayOutKv(layers, DType::kBF16, 131072), 131072);
    EXPECT_GE(all, 5 * some) << n << " layers";
  }
}

TEST(KvLayout, PaddingCostsAShortTextLessThanAFifth) {
  for (const int n : {26, 34, 48, 62}) {
    const std::vector<AttentionSpec> layers = Interleaved(n, 5, 1024);
    const int64_t all = SequenceBytes(KvInOneTable(layers, DType::kBF16), 256);
    const int64_t padded = SequenceBytes(LayOutKv(layers, DType::kBF16, 131072), 256);
    EXPECT_LT(padded * 5, all * 6) << n << " layers";
  }
}

TEST(KvLayout, EverySecondLayerWithAWindowMakesTwoTablesWithoutPadding) {
  const std::vector<AttentionSpec> layers = Interleaved(24, 1, 128);
  const KvCache::Shape shape = LayOutKv(layers, DType::kBF16, 131072);

  EXPECT_EQ(shape.windows, (std::vector<KvWindow>{{}, KvWindow::Sliding(128)}));
  EXPECT_EQ(2 * shape.block_bytes(), KvInOneTable(layers, DType::kBF16).block_bytes());
}

TEST(KvLayout, LayersOfOneWindowShareOneTable) {
  const std::vector<AttentionSpec> same(12, KeptLayer(2048));
  EXPECT_EQ(LayOutKv(same, DType::kBF16, 32768).windows,
            std::vector<KvWindow>{KvWindow::Sliding(2048)});
  EXPECT_EQ(LayOutKv(same, DType::kBF16, 2048).windows, std::vector<KvWindow>{KvWindow{}})
      << "it never slides";
  const std::vector<AttentionSpec> full(12, KeptLayer(0));
  EXPECT_EQ(LayOutKv(full, DType::kBF16, 32768).windows, std::vector<KvWindow>{KvWindow{}});
}

// Llama 4: three layers of four see their own chunk of 8,192 positions.
TEST(KvLayout, ChunkedLayersHaveTablesOfTheirChunk) {
  std::vector<AttentionSpec> layers = Interleaved(48, 3, 0);
  for (size_t i = 0; i < layers.size(); ++i) layers[i].chunk = i % 4 == 3 ? 0 : 8192;
  const KvCache::Shape shape = LayOutKv(layers, DType::kBF16, 1 << 20);

  EXPECT_EQ(shape.windows,
            (std::vector<KvWindow>{
                {}, KvWindow::Chunk(8192), KvWindow::Chunk(8192), KvWindow::Chunk(8192)}));
  for (size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ(shape.windows.at(shape.layers[i].table), WindowOf(layers[i])) << i;
  }
  const int64_t all = SequenceBytes(KvInOneTable(layers, DType::kBF16), 1 << 20);
  EXPECT_GE(2 * all, 7 * SequenceBytes(shape, 1 << 20)) << "3.9 times less";
  EXPECT_EQ(LayOutKv(layers, DType::kBF16, 8192).windows, std::vector<KvWindow>{KvWindow{}})
      << "one chunk holds the longest text";
}

// No family has both. A table of several kinds must hold what any of its layers sees.
TEST(KvLayout, ChunksAndSlidingWindowsShareATableOnlyIfItHoldsBoth) {
  for (const auto& [window, chunk] : {std::pair{64, 48}, {64, 64}, {64, 96}, {64, 128}}) {
    std::vector<AttentionSpec> layers = {KeptLayer(window), KeptLayer(0)};
    layers[1].chunk = chunk;
    const KvCache::Shape shape = LayOutKv(layers, DType::kBF16, 4096);
    for (size_t i = 0; i < layers.size(); ++i) {
      EXPECT_TRUE(shape.windows.at(shape.layers[i].table).Covers(WindowOf(layers[i]))) << i;
    }
  }
}

TEST(KvLayout, LayersWithoutKeysTakeNoPlace) {
  std::vector<AttentionSpec> layers = Interleaved(12, 5, 64);
  layers.insert(layers.begin() + 3, AttentionSpec{});
  const KvCache::Shape shape = LayOutKv(layers, DType::kF32, 4096);
  EXPECT_EQ(shape.layers[3].key_bytes + shape.layers[3].value_bytes, 0);
}

// Small full layers beside large windowed ones: several of them share the area of a large one.
TEST(KvLayout, LayersOfDifferentSizesArePackedNotPadded) {
  std::vector<AttentionSpec> layers;
  for (int i = 0; i < 36; ++i) {
    layers.push_back(i % 6 == 5 ? KeptLayer(0, 4, 128) : KeptLayer(1024, 16, 64));
  }
  const int64_t all = SequenceBytes(KvInOneTable(layers, DType::kBF16), 65536);
  EXPECT_GE(2 * all, 11 * SequenceBytes(LayOutKv(layers, DType::kBF16, 65536), 65536));
}

}  // namespace
}  // namespace tandem::engine
