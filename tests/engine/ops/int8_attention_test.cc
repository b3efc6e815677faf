// Keys and values in int8 (KvFormat::kInt8), on every table.

#include "tests/engine/ops/attention_fixture.h"

namespace tandem::engine {
namespace {

using Int8AttentionTest = TableTest;
INSTANTIATE_TEST_SUITE_P(Tables, Int8AttentionTest, testing::ValuesIn(AllTables()), TableName);

// Integers in [-127, 127] times a power of two for each row, 127 among them: int8 keeps them
// exactly.
std::vector<float> ExactFloats(int64_t rows, int64_t cols, uint32_t seed) {
  std::vector<float> x = RandomFloats(rows * cols, seed);
  for (int64_t r = 0; r < rows; ++r) {
    const float step = std::ldexp(1.0f, static_cast<int>(r % 3) - 7);
    for (int64_t c = 0; c < cols; ++c) {
      float& value = x[static_cast<size_t>(r * cols + c)];
      value =
          c == r % cols ? 127 * step : std::nearbyint(std::clamp(value, -1.0f, 1.0f) * 127) * step;
    }
  }
  return x;
}

void Fill(TestMatrix& matrix, const std::vector<float>& values) {
  const int64_t cols = matrix.matrix().cols;
  for (size_t i = 0; i < values.size(); ++i) {
    matrix.Set(static_cast<int64_t>(i) / cols, static_cast<int64_t>(i) % cols, values[i]);
  }
}

TEST_P(Int8AttentionTest, AgreesWithDoubleWhereInt8IsExact) {
  for (const DType dtype : kComputeTypes) {
    for (const int64_t head_dim : {5, 16, 64, 128}) {
      for (const int64_t window : {0, 40, -48}) {  // below 0: a chunk of that length
        AttentionSpec spec = Spec(3, 1, head_dim);
        spec.v_head_dim = head_dim == 64 ? 24 : 0;
        spec.window = std::max<int64_t>(0, window);
        spec.chunk = std::max<int64_t>(0, -window);
        spec.soft_cap = window > 0 ? 2.5f : 0.0f;
        Sequence s(dtype, spec, 150, 1);  // of one kv head, so a row is a head
        Fill(s.k, ExactFloats(s.n, spec.head_dim, 2));
        Fill(s.v, ExactFloats(s.n, spec.value_dim(), 3));
        TestCache cache(dtype, spec, BlocksFor(s.n), KvFormat::kInt8);
        Result result(dtype, spec, s.n);
        TestOps ops(table(), 2);

        RunInChunks(ops, spec, s, ScatteredBlocks(0, BlocksFor(s.n)), cache.view(), {90, 59, 1},
                    result);

        ExpectExact(spec, s, result);
      }
    }
  }
}

TEST_P(Int8AttentionTest, IsNearTheSameInTheComputeType) {
  for (const DType dtype : kComputeTypes) {
    const AttentionSpec spec = Spec(6, 2, 64);
    const Sequence s(dtype, spec, 200, 4);
    const std::vector<BlockId> blocks = ScatteredBlocks(0, BlocksFor(s.n));
    TestOps ops(table(), 2);
    TestCache exact(dtype, spec, BlocksFor(s.n));
    Result wanted(dtype, spec, s.n);
    RunInChunks(ops, spec, s, blocks, exact.view(), {s.n}, wanted);
    TestCache cache(dtype, spec, BlocksFor(s.n), KvFormat::kInt8);
    Result result(dtype, spec, s.n);
    RunInChunks(ops, spec, s, blocks, cache.view(), {s.n}, result);
    double worst = 0;
    for (int64_t r = 0; r < s.n; ++r) {
      for (int64_t c = 0; c < spec.n_heads * spec.value_dim(); ++c) {
        worst = std::max(worst, std::abs(double{result.out.At(r, c)} - wanted.out.At(r, c)));
      }
    }
    EXPECT_LT(worst, 0.05);  // values have the standard deviation 1
    EXPECT_GT(worst, 0);
  }
}

TEST_P(Int8AttentionTest, PrefillInAnyChunksHasTheSameBits) {
  for (const DType dtype : kComputeTypes) {
    for (const int64_t window : {0, 40, -48}) {
      AttentionSpec spec = Spec(6, 2, 32);
      spec.window = std::max<int64_t>(0, window);
      spec.chunk = std::max<int64_t>(0, -window);
      const Sequence s(dtype, spec, 150, 4);
      const std::vector<BlockId> blocks = ScatteredBlocks(0, BlocksFor(s.n));
      TestCache whole_cache(dtype, spec, BlocksFor(s.n), KvFormat::kInt8);
      Result whole(dtype, spec, s.n);
      TestOps one(table(), 1);
      RunInChunks(one, spec, s, blocks, whole_cache.view(), {s.n}, whole);

      for (const std::vector<int64_t>& chunks :
           {std::vector<int64_t>(150, 1), {1, 149}, {63, 2, 15, 70}}) {
        TestCache cache(dtype, spec, BlocksFor(s.n), KvFormat::kInt8);
        Result result(dtype, spec, s.n);
        TestOps ops(table(), 3);
        RunInChunks(ops, spec, s, blocks, cache.view(), chunks, result);
        EXPECT_TRUE(whole == result) << DTypeName(dtype) << " window " << window;
      }
    }
  }
}

TEST_P(Int8AttentionTest, LongPrefillInAnyChunksHasTheSameBits) {
  const AttentionSpec spec = Spec(2, 1, 8);
  const int64_t length = kKeyChunk + 90;
  const Sequence s(DType::kBF16, spec, length, 5);
  const std::vector<BlockId> blocks = ScatteredBlocks(0, BlocksFor(length));
  TestCache whole_cache(DType::kBF16, spec, BlocksFor(length), KvFormat::kInt8);
  Result whole(DType::kBF16, spec, length);
  TestOps one(table(), 1);
  RunInChunks(one, spec, s, blocks, whole_cache.view(), {length}, whole);
  TestCache cache(DType::kBF16, spec, BlocksFor(length), KvFormat::kInt8);
  Result result(DType::kBF16, spec, length);
  TestOps ops(table(), 3);
  RunInChunks(ops, spec, s, blocks, cache.view(), {kKeyChunk - 1, 2, 88, 1}, result);
  EXPECT_TRUE(whole == result);
}

// A head that is not finite spoils every query that sees it, and no other; a head of zeros stays
// zero.
TEST_P(Int8AttentionTest, NotANumberReachesWhatSeesItAndZerosStayZero) {
  AttentionSpec spec = Spec(1, 1, 16);
  Sequence s(DType::kF32, spec, 40, 7);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {nan, std::numeric_limits<float>::infinity()}) {
    std::vector<float> keys(static_cast<size_t>(s.n * spec.head_dim), 0.0f);
    std::vector<float> values(static_cast<size_t>(s.n * spec.head_dim), 0.0f);
    keys[static_cast<size_t>(20 * spec.head_dim + 3)] = bad;
    Fill(s.k, keys);
    Fill(s.v, values);
    TestCache cache(DType::kF32, spec, BlocksFor(s.n), KvFormat::kInt8);
    Result result(DType::kF32, spec, s.n);
    TestOps ops(table(), 1);
    RunInChunks(ops, spec, s, ScatteredBlocks(0, BlocksFor(s.n)), cache.view(), {s.n}, result);
    EXPECT_EQ(result.out.At(19, 0), 0.0f);
    EXPECT_TRUE(std::isnan(result.out.At(20, 0)));
    EXPECT_TRUE(std::isnan(result.out.At(39, 5)));
  }
}

TEST(Int8KvBytes, IsAboutHalfOfBf16) {
  EXPECT_EQ(KvHeadBlockBytes(DType::kBF16, 128, KvFormat::kInt8), 16 * (128 + 4));
  EXPECT_EQ(KvHeadBlockBytes(DType::kBF16, 5, KvFormat::kInt8), 16 * (6 + 4));
  EXPECT_EQ(KvHeadBlockBytes(DType::kF32, 5, KvFormat::kInt8), 16 * (5 + 4));
}

}  // namespace
}  // namespace tandem::engine
