#include "engine/base/trace/parallel_trace.h"
#include "tests/engine/ops/attention_fixture.h"

namespace tandem::engine {
namespace {

using AttentionTest = TableTest;
INSTANTIATE_TEST_SUITE_P(Tables, AttentionTest, testing::ValuesIn(AllTables()), TableName);

TEST_P(AttentionTest, AgreesWithDoubleForEveryHeadShape) {
  for (const DType dtype : kComputeTypes) {
    for (const int64_t head_dim : {5, 8, 12, 16, 64, 80, 128, 256}) {
      for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{1, 1}, {4, 2}, {7, 1}}) {
        const AttentionSpec spec = Spec(heads, kv_heads, head_dim);
        const Sequence s(dtype, spec, 83, 1);
        TestCache cache(dtype, spec, BlocksFor(s.n));
        Result result(dtype, spec, s.n);
        TestOps ops(table(), 2);

        RunInChunks(ops, spec, s, ScatteredBlocks(0, BlocksFor(s.n)), cache.view(), {s.n}, result);

        ExpectExact(spec, s, result);
      }
    }
  }
}

TEST_P(AttentionTest, AgreesWithDoubleUnderWindowsAndSoftCap) {
  for (const DType dtype : kComputeTypes) {
    for (const int64_t window : {1, 2, 16, 50, 64, 100, 1000}) {
      AttentionSpec spec = Spec(4, 2, 24);
      spec.window = window;
      spec.soft_cap = window % 2 == 0 ? 2.5f : 0.0f;
      const Sequence s(dtype, spec, 197, 2);
      TestCache cache(dtype, spec, BlocksFor(s.n));
      Result result(dtype, spec, s.n);
      TestOps ops(table(), 2);

      RunInChunks(ops, spec, s, ScatteredBlocks(0, BlocksFor(s.n)), cache.view(), {97, 100},
                  result);

      ExpectExact(spec, s, result);
    }
  }
}

TEST_P(AttentionTest, AgreesWithDoubleWhereRowsSeeTheirOwnChunkOnly) {
  for (const DType dtype : kComputeTypes) {
    for (const int64_t chunk : {16, 48, 112, 4096}) {
      AttentionSpec spec = Spec(4, 2, 24);
      spec.chunk = chunk;
      const Sequence s(dtype, spec, 197, 5);
      TestCache cache(dtype, spec, BlocksFor(s.n));
      Result result(dtype, spec, s.n);
      TestOps ops(table(), 2);

      RunInChunks(ops, spec, s, ScatteredBlocks(0, BlocksFor(s.n)), cache.view(), {97, 100},
                  result);

      ExpectExact(spec, s, result);
    }
  }
}

// Sinks below, among and far above the scores; one of minus infinity is no sink at all.
TEST_P(AttentionTest, SinksTakeTheirShareOfEverySoftmax) {
  for (const DType dtype : kComputeTypes) {
    for (const int64_t window : {0, 1, 40}) {
      AttentionSpec spec = Spec(6, 2, 24);
      spec.window = window;
      spec.soft_cap = window == 40 ? 2.5f : 0.0f;
      Sequence s(dtype, spec, 197, 9);
      s.sinks = {-3.0f, 0.5f, 30.0f, 4.0f, -std::numeric_limits<float>::infinity(), 1.0f};
      TestCache cache(dtype, spec, BlocksFor(s.n));
      Result result(dtype, spec, s.n);
      TestOps ops(table(), 2);

      RunInChunks(ops, spec, s, ScatteredBlocks(0, BlocksFor(s.n)), cache.view(), {97, 100},
                  result);

      ExpectExact(spec, s, result);
    }
  }
}

TEST_P(AttentionTest, LongPrefillWithSinksInAnyChunksHasTheSameBits) {
  const AttentionSpec spec = Spec(4, 2, 8);
  const int64_t length = kKeyChunk + 90;
  Sequence s(DType::kBF16, spec, length, 6);
  s.sinks = {0.25f, 8.0f, -1.0f, 2.0f};
  const std::vector<BlockId> blocks = ScatteredBlocks(0, BlocksFor(length));
  TestCache whole_cache(DType::kBF16, spec, BlocksFor(length));
  Result whole(DType::kBF16, spec, length);
  TestOps one(table(), 1);
  RunInChunks(one, spec, s, blocks, whole_cache.view(), {length}, whole);
  ExpectExact(spec, s, whole);

  for (const std::vector<int64_t>& chunks :
       {std::vector<int64_t>{kKeyChunk - 1, 2, 88, 1}, {1, 1, length - 2}, {kKeyChunk, 90}}) {
    TestCache cache(DType::kBF16, spec, BlocksFor(length));
    Result result(DType::kBF16, spec, length);
    TestOps ops(table(), 3);
    RunInChunks(ops, spec, s, blocks, cache.view(), chunks, result);
    EXPECT_TRUE(whole == result) << chunks.front();
  }
}

TEST_P(AttentionTest, AgreesWithDoubleAcrossKeyChunks) {
  const AttentionSpec spec = Spec(2, 1, 16);
  const int64_t length = kKeyChunk + 70;
  const Sequence s(DType::kF32, spec, length, 3);
  TestCache cache(DType::kF32, spec, BlocksFor(length));
  Result result(DType::kF32, spec, length);
  TestOps ops(table(), 2);

  RunInChunks(ops, spec, s, ScatteredBlocks(0, BlocksFor(length)), cache.view(), {length}, result);

  ExpectExact(spec, s, result);
}

TEST_P(AttentionTest, PrefillInAnyChunksHasTheSameBits) {
  for (const DType dtype : kComputeTypes) {
    for (const int64_t window : {0, 40, -48}) {  // below 0: a chunk of that length
      AttentionSpec spec = Spec(6, 2, 32);
      spec.window = std::max<int64_t>(0, window);
      spec.chunk = std::max<int64_t>(0, -window);
      const Sequence s(dtype, spec, 150, 4);
      const std::vector<BlockId> blocks = ScatteredBlocks(0, BlocksFor(s.n));
      TestCache whole_cache(dtype, spec, BlocksFor(s.n));
      Result whole(dtype, spec, s.n);
      TestOps one(table(), 1);
      RunInChunks(one, spec, s, blocks, whole_cache.view(), {s.n}, whole);

      for (const std::vector<int64_t>& chunks :
           {std::vector<int64_t>(150, 1), {1, 149}, {64, 64, 22}, {63, 2, 15, 70}, {130, 20}}) {
        for (const int threads : {1, 3}) {
          TestCache cache(dtype, spec, BlocksFor(s.n));
          Result result(dtype, spec, s.n);
          TestOps ops(table(), threads);

          RunInChunks(ops, spec, s, blocks, cache.view(), chunks, result);

          EXPECT_TRUE(whole == result)
              << DTypeName(dtype) << " window " << window << " chunks from " << chunks.front();
        }
      }
    }
  }
}

// Few rows read keys and values as stored, many rows widen them first.
TEST_P(AttentionTest, AnyNumberOfRowsHasTheSameBits) {
  for (const KvFormat format : {KvFormat::kCompute, KvFormat::kInt8}) {
    for (const auto& [head_dim, value_dim] :
         {std::pair<int64_t, int64_t>{5, 7}, {64, 24}, {40, 80}, {96, 64}}) {
      AttentionSpec spec = Spec(3, 1, head_dim);
      spec.v_head_dim = value_dim;
      const Sequence s(DType::kBF16, spec, 140, 9);
      const std::vector<BlockId> blocks = ScatteredBlocks(0, BlocksFor(s.n));
      TestCache whole_cache(DType::kBF16, spec, BlocksFor(s.n), format);
      Result whole(DType::kBF16, spec, s.n);
      TestOps ops(table(), 1);
      RunInChunks(ops, spec, s, blocks, whole_cache.view(), {s.n}, whole);
      TestCache cache(DType::kBF16, spec, BlocksFor(s.n), format);
      Result result(DType::kBF16, spec, s.n);
      RunInChunks(ops, spec, s, blocks, cache.view(),
                  {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 30}, result);
      EXPECT_TRUE(whole == result) << head_dim << " and " << value_dim;
    }
  }
}

TEST_P(AttentionTest, LongPrefillInAnyChunksHasTheSameBits) {
  const AttentionSpec spec = Spec(2, 1, 8);
  const int64_t length = 2 * kKeyChunk + 90;
  const Sequence s(DType::kBF16, spec, length, 5);
  const std::vector<BlockId> blocks = ScatteredBlocks(0, BlocksFor(length));
  TestCache whole_cache(DType::kBF16, spec, BlocksFor(length));
  Result whole(DType::kBF16, spec, length);
  TestOps one(table(), 1);
  RunInChunks(one, spec, s, blocks, whole_cache.view(), {length}, whole);

  TestCache cache(DType::kBF16, spec, BlocksFor(length));
  Result result(DType::kBF16, spec, length);
  TestOps ops(table(), 3);
  RunInChunks(ops, spec, s, blocks, cache.view(), {kKeyChunk - 1, 2, kKeyChunk, 88, 1}, result);

  EXPECT_TRUE(whole == result);
}

// Attention over slices of one sequence whose keys and values are in the cache.
struct Cached {
  AttentionSpec spec;
  int64_t length;
  Sequence s;
  std::vector<BlockId> blocks;
  TestCache cache;

  Cached(OpsContext& ops, const AttentionSpec& with, int64_t n, KvFormat format)
      : spec(with),
        length(n),
        s(DType::kBF16, spec, length, 5),
        blocks(ScatteredBlocks(0, BlocksFor(length))),
        cache(DType::kBF16, spec, BlocksFor(length), format) {
    s.sinks = RandomFloats(spec.n_heads, 9);
    const AttentionSlice all = {0, length, 0, blocks};
    WriteKv(ops, spec, s.k.Rows(0, length), s.v.Rows(0, length), {&all, 1}, cache.view());
  }

  // Slices follow each other in the batch and in the sequence.
  void Attend(OpsContext& ops, const std::vector<AttentionSlice>& slices, Result& result) {
    const int64_t first = slices[0].first_position;
    const int64_t rows = slices.back().first_row + slices.back().n_rows;
    Attention(ops, spec, s.q.Rows(first, rows), slices, cache.view(), result.out.Rows(first, rows),
              result.lse.data() + first * spec.n_heads, s.sinks_or_null());
  }
};

// Few rows at depth are cut into chunks of keys and groups of kv heads, many rows are not.
TEST_P(AttentionTest, FewRowsOfManyHeadsHaveTheBitsOfManyRows) {
  constexpr int64_t kLast = 30;
  const std::pair<int64_t, int64_t> heads[] = {{32, 16}, {10, 5}, {24, 1}};
  for (const KvFormat format : {KvFormat::kCompute, KvFormat::kInt8}) {
    for (size_t i = 0; i < std::size(heads); ++i) {
      for (const int64_t window : {0, 1500}) {
        AttentionSpec spec = Spec(heads[i].first, heads[i].second, 16);
        spec.window = window;
        TestOps ops(table(), 3);
        TestOps many_threads(table(), 9);
        Cached c(ops, spec, 2 * kKeyChunk + 70, format);
        const int64_t from = c.length - kLast;
        Result many(DType::kBF16, spec, c.length);
        c.Attend(ops, {{0, kLast, from, c.blocks}}, many);

        for (TestOps* const used : {&ops, &many_threads}) {
          Result alone(DType::kBF16, spec, c.length);
          for (int64_t r = 0; r < kLast; r += 3) {
            c.Attend(*used, {{0, 3, from + r, c.blocks}}, alone);
          }
          EXPECT_TRUE(many == alone) << spec.n_heads << " " << window;

          Result together(DType::kBF16, spec, c.length);
          std::vector<AttentionSlice> slices;
          for (int64_t r = 0; r < kLast; ++r) slices.push_back({r, 1, from + r, c.blocks});
          c.Attend(*used, slices, together);
          EXPECT_TRUE(many == together) << spec.n_heads << " " << window;
        }
      }
    }
  }
}

// Tasks of one call: slices by rows, kv heads and threads.
TEST(AttentionTasks, SufficeForManyThreads) {
  struct Case {
    int64_t n_heads, n_kv_heads, rows;
    int n_threads;
    size_t want;
  };
  constexpr int64_t kChunks = 3;
  constexpr Case kCases[] = {
      {32, 16, 1, 2, kChunks * 8},                            // two kv heads a task
      {32, 16, 1, 20, kChunks * 16}, {24, 1, 1, 2, kChunks},  // one query of a large group
      {32, 16, 20, 2, kChunks * 16}, {8, 2, 96, 2, 2 * 4},    // few tasks: half the rows in each
      {32, 8, 96, 2, 8 * 2},         {32, 8, 96, 20, 8 * 4}};
  for (const Case& c : kCases) {
    TestOps ops(Kernels(), c.n_threads);
    Cached cached(ops, Spec(c.n_heads, c.n_kv_heads, 8), 2 * kKeyChunk + 100, KvFormat::kCompute);
    Result result(DType::kBF16, cached.spec, cached.length);
    ParallelTrace trace;
    cached.Attend(ops, {{0, c.rows, cached.length - c.rows, cached.blocks}}, result);
    const ParallelRecord record = trace.Take();
    ASSERT_FALSE(record.regions.empty());
    EXPECT_EQ(record.regions[0].task_seconds.size(), c.want)
        << c.n_heads << " heads, " << c.rows << " rows, " << c.n_threads << " threads";
  }
}

TEST_P(AttentionTest, SequencesTogetherHaveTheBitsOfEachAlone) {
  for (const DType dtype : kComputeTypes) {
    const AttentionSpec spec = Spec(4, 2, 40);
    const std::vector<int64_t> lengths = {1, 70, 16, 133};
    std::vector<AttentionSlice> slices;
    std::vector<std::vector<BlockId>> blocks;
    int64_t rows = 0;
    int64_t n_blocks = 0;
    for (const int64_t length : lengths) {
      blocks.push_back(ScatteredBlocks(n_blocks, BlocksFor(length)));
      slices.push_back({rows, length, 0, {}});
      rows += length;
      n_blocks += BlocksFor(length);
    }
    for (size_t i = 0; i < slices.size(); ++i) slices[i].blocks = blocks[i];
    const Sequence all(dtype, spec, rows, 6);  // rows of all four, packed
    TestCache cache(dtype, spec, n_blocks);
    Result together(dtype, spec, rows);
    TestOps ops(table(), 2);

    WriteKv(ops, spec, all.k, all.v, slices, cache.view());
    Attention(ops, spec, all.q, slices, cache.view(), together.out.matrix(), together.lse.data());

    Result apart(dtype, spec, rows);
    for (const AttentionSlice& slice : slices) {
      TestCache own(dtype, spec, BlocksFor(slice.n_rows));
      const std::vector<BlockId> own_blocks = ScatteredBlocks(0, BlocksFor(slice.n_rows));
      const AttentionSlice alone = {0, slice.n_rows, 0, own_blocks};
      const int64_t first = slice.first_row;
      TestOps one(table(), 1);
      WriteKv(one, spec, all.k.Rows(first, slice.n_rows), all.v.Rows(first, slice.n_rows),
              {&alone, 1}, own.view());
      Attention(one, spec, all.q.Rows(first, slice.n_rows), {&alone, 1}, own.view(),
                apart.out.Rows(first, slice.n_rows), apart.lse.data() + first * spec.n_heads);
    }
    EXPECT_TRUE(together == apart) << DTypeName(dtype);
  }
}

TEST_P(AttentionTest, LaterKeysAreNeverTouched) {
  for (const DType dtype : kComputeTypes) {
    const AttentionSpec spec = Spec(4, 2, 20);
    const Sequence s(dtype, spec, 90, 7);
    const std::vector<BlockId> blocks = ScatteredBlocks(0, BlocksFor(s.n));
    TestCache cache(dtype, spec, BlocksFor(s.n));
    Result whole(dtype, spec, s.n);
    TestOps ops(table(), 2);
    RunInChunks(ops, spec, s, blocks, cache.view(), {s.n}, whole);

    // Rows 40..90 now hold infinities; earlier rows must not change.
    Sequence poisoned(dtype, spec, 90, 7);
    for (int64_t r = 40; r < s.n; ++r) {
      for (int64_t c = 0; c < spec.n_kv_heads * spec.head_dim; ++c) {
        poisoned.k.Set(r, c, std::numeric_limits<float>::infinity());
        poisoned.v.Set(r, c, -std::numeric_limits<float>::infinity());
      }
    }
    const AttentionSlice slice = {0, s.n, 0, blocks};
    WriteKv(ops, spec, poisoned.k, poisoned.v, {&slice, 1}, cache.view());
    Result again(dtype, spec, s.n);
    Attention(ops, spec, s.q, {&slice, 1}, cache.view(), again.out.matrix(), again.lse.data());

    for (int64_t r = 0; r < 40; ++r) {
      for (int64_t c = 0; c < spec.n_heads * spec.head_dim; ++c) {
        ASSERT_EQ(again.out.At(r, c), whole.out.At(r, c)) << "row " << r;
      }
    }
  }
}

TEST_P(AttentionTest, KeysBeforeTheWindowMayBeGone) {
  AttentionSpec spec = Spec(2, 1, 16);
  spec.window = 33;
  const Sequence s(DType::kBF16, spec, 200, 8);
  std::vector<BlockId> blocks = ScatteredBlocks(0, BlocksFor(s.n));
  TestCache cache(DType::kBF16, spec, BlocksFor(s.n));
  Result whole(DType::kBF16, spec, s.n);
  TestOps ops(table(), 2);
  RunInChunks(ops, spec, s, blocks, cache.view(), {s.n}, whole);

  // Row 199 sees positions 167..199: blocks 0..9 may have any value, even an invalid id.
  for (size_t b = 0; b < 10; ++b) blocks[b] = {0xffffffffu};
  const AttentionSlice slice = {0, 1, 199, blocks};
  Result last(DType::kBF16, spec, 1);
  Attention(ops, spec, s.q.Rows(199, 1), {&slice, 1}, cache.view(), last.out.matrix(),
            last.lse.data());

  for (int64_t c = 0; c < spec.n_heads * spec.head_dim; ++c) {
    EXPECT_EQ(last.out.At(0, c), whole.out.At(199, c));
  }
}

TEST_P(AttentionTest, ValuesMayBeNarrowerOrWiderThanKeys) {
  for (const DType dtype : kComputeTypes) {
    for (const auto& [head_dim, v_head_dim] :
         {std::pair<int64_t, int64_t>{24, 16}, {192, 128}, {20, 7}, {9, 40}, {512, 512}}) {
      AttentionSpec spec = Spec(4, 2, head_dim);
      spec.v_head_dim = v_head_dim;
      spec.window = v_head_dim == 16 ? 30 : 0;
      const Sequence s(dtype, spec, 83, 7);
      TestCache cache(dtype, spec, BlocksFor(s.n));
      Result whole(dtype, spec, s.n);
      Result pieces(dtype, spec, s.n);
      TestOps ops(table(), 2);
      const std::vector<BlockId> blocks = ScatteredBlocks(0, BlocksFor(s.n));

      RunInChunks(ops, spec, s, blocks, cache.view(), {83}, whole);
      ExpectExact(spec, s, whole);
      RunInChunks(ops, spec, s, blocks, cache.view(), {1, 40, 42}, pieces);

      EXPECT_TRUE(whole == pieces) << head_dim << " " << v_head_dim;
    }
  }
}

TEST(WriteKv, LaysKeysInPanelsAndValuesInRows) {
  AttentionSpec spec = Spec(2, 2, 6);
  spec.v_head_dim = 4;
  const Sequence s(DType::kBF16, spec, 20, 9);
  TestCache cache(DType::kBF16, spec, 2);
  const std::vector<BlockId> blocks = {{1}, {0}};
  const AttentionSlice slice = {0, 20, 0, blocks};
  TestOps ops(Kernels());

  WriteKv(ops, spec, s.k, s.v, {&slice, 1}, cache.view());

  const KvLayerView kv = cache.view();
  for (int64_t p = 0; p < 20; ++p) {
    for (int64_t h = 0; h < 2; ++h) {
      const int64_t block = p < 16 ? 1 : 0;
      const Bf16* keys = reinterpret_cast<const Bf16*>(kv.keys + block * kv.key_stride_bytes +
                                                       h * KvHeadBlockBytes(DType::kBF16, 6));
      const Bf16* values = reinterpret_cast<const Bf16*>(kv.values + block * kv.value_stride_bytes +
                                                         h * KvHeadBlockBytes(DType::kBF16, 4));
      for (int64_t d = 0; d < 6; ++d) {
        EXPECT_EQ(Bf16ToFloat(keys[(d / 2 * 16 + p % 16) * 2 + d % 2]), s.k.At(p, h * 6 + d));
      }
      for (int64_t d = 0; d < 4; ++d) {
        EXPECT_EQ(Bf16ToFloat(values[p % 16 * 4 + d]), s.v.At(p, h * 4 + d));
      }
    }
  }
}

}  // namespace
}  // namespace tandem::engine
