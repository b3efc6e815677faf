#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/kernels/kernels.h"
#include "tests/engine/kernels/emulated_amx.h"

// Products with quantised weights on every table. They are compared with f64 arithmetic on the same
// integers and scales. BlockMatMulArgs promises the bits of the reference table.

namespace tandem::engine {
namespace {

// Formats whose groups can be set one at a time.
constexpr BlockFormat kPlainFormats[] = {BlockFormat::kInt8, BlockFormat::kInt4,
                                         BlockFormat::kInt6};

// The next k that the format can hold.
int64_t Fitting(BlockFormat format, int64_t k) {
  return FitsBlocks(format, k) ? k : (k + kSuperSize - 1) / kSuperSize * kSuperSize;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Rows of bf16 activations in a buffer of exactly their size.
struct Activations {
  Activations(int64_t m_in, int64_t k_in, const std::function<float(int64_t, int64_t)>& value)
      : m(m_in), k(k_in), x(static_cast<size_t>(m * k)) {
    for (int64_t i = 0; i < m * k; ++i) {
      x[static_cast<size_t>(i)] = FloatToBf16(value(i / k, i % k));
    }
  }
  static Activations Random(int64_t m, int64_t k, uint32_t seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    return Activations(m, k, [&](int64_t, int64_t) { return normal(rng); });
  }
  int64_t m, k;
  std::vector<Bf16> x;
};

struct Quantized {
  Quantized(const KernelTable& table, const Activations& a, BlockFormat format)
      : groups(GroupsOf(a.k)),
        ldq(groups * kGroupSize + 64),
        ldgroups(groups + 3),
        q(static_cast<size_t>(a.m * ldq), 99),
        scales(static_cast<size_t>(a.m * ldgroups), 99.0f),
        starts(static_cast<size_t>(a.m * ldgroups), 99),
        sums(static_cast<size_t>(a.m * ldgroups), 99.0f) {
    table.blocks->quantize_rows({.x = a.x.data(),
                                 .ldx = a.k,
                                 .rows = a.m,
                                 .cols = a.k,
                                 .offset = BlockOffset(format),
                                 .q = q.data(),
                                 .ldq = ldq,
                                 .scales = scales.data(),
                                 .starts = starts.data(),
                                 .sums = sums.data(),
                                 .ldgroups = ldgroups});
  }
  int64_t groups, ldq, ldgroups;
  std::vector<int8_t> q;
  std::vector<float> scales;
  std::vector<int32_t> starts;
  std::vector<float> sums;
};

// A Q4_K super-block of arbitrary six-bit numbers and nibbles.
std::array<std::byte, kQ4KBytes> MakeQ4K(float d, float dmin,
                                         const std::function<uint32_t()>& byte) {
  std::array<std::byte, kQ4KBytes> block;
  for (std::byte& b : block) b = static_cast<std::byte>(byte());
  const uint16_t numbers[] = {FloatToF16(d), FloatToF16(dmin)};
  std::memcpy(block.data(), numbers, sizeof(numbers));
  return block;
}

// A weight with given groups or super-blocks.
struct Blocks {
  Blocks(BlockFormat format_in, int64_t n_in, int64_t k_in)
      : format(format_in),
        n(n_in),
        k(k_in),
        n_panels((n + kLanes - 1) / kLanes),
        panels(static_cast<size_t>(n_panels * BlockPanelBytes(format, k))) {
    std::memset(panels.data(), 0, panels.size());
  }
  Blocks(BlockFormat format_in, int64_t n_in, int64_t k_in,
         const std::function<BlockGroup(int64_t row, int64_t group)>& group)
      : Blocks(format_in, n_in, k_in) {
    for (int64_t row = 0; row < n_panels * kLanes; ++row) {
      for (int64_t g = 0; g < GroupsOf(k); ++g) {
        BlockGroup values;
        if (row < n) values = group(row, g);
        for (int64_t i = 0; i < kGroupSize; ++i) {
          if (g * kGroupSize + i >= k) values.q[i] = 0;
        }
        PutGroup(format, Panel(row), k, g, row % kLanes, values);
      }
    }
  }
  static Blocks Random(BlockFormat format, int64_t n, int64_t k, uint32_t seed) {
    std::mt19937 rng(seed);
    if (format == BlockFormat::kInt4K) {
      Blocks blocks(format, n, k);
      std::uniform_real_distribution<float> scale(-0.02f, 0.02f);
      for (int64_t row = 0; row < n; ++row) {
        for (int64_t b = 0; b < k / kSuperSize; ++b) {
          const auto block = MakeQ4K(scale(rng), 8 * scale(rng), std::ref(rng));
          PutQ4K(blocks.Panel(row), k, b, row % kLanes, block.data());
        }
      }
      return blocks;
    }
    if (format == BlockFormat::kMxfp4) {
      return Blocks(format, n, k, [&](int64_t, int64_t) {
        BlockGroup group;
        group.scale = static_cast<uint16_t>(115 + rng() % 8);
        for (int8_t& q : group.q) q = static_cast<int8_t>(kMxfp4Numbers[rng() % 16] - kMxfp4Offset);
        return group;
      });
    }
    const int low = -BlockOffset(format);
    return Blocks(format, n, k, [&](int64_t, int64_t) {
      BlockGroup group;
      group.scale = FloatToF16(std::uniform_real_distribution<float>(-0.02f, 0.02f)(rng));
      for (int8_t& q : group.q) {
        q = static_cast<int8_t>(std::uniform_int_distribution<int>(low, -low - 1)(rng));
      }
      return group;
    });
  }
  std::byte* Panel(int64_t row) {
    return panels.data() + row / kLanes * BlockPanelBytes(format, k);
  }
  const std::byte* Panel(int64_t row) const { return const_cast<Blocks*>(this)->Panel(row); }
  // The product of group g of a row of x and of a row of the weight.
  struct Term {
    double value;
    double magnitude;
  };
  Term At(int64_t row, int64_t g, const Quantized& x, int64_t m) const {
    const auto at = static_cast<size_t>(m * x.ldgroups + g);
    const int8_t* q = x.q.data() + m * x.ldq + g * kGroupSize;
    int64_t integers = 0;
    if (format == BlockFormat::kInt4K) {
      const ScaledGroup group = GetScaledGroup(Panel(row), k, g, row % kLanes);
      int64_t sum = 0;
      for (int64_t i = 0; i < kGroupSize; ++i) {
        integers += int64_t{group.q[i]} * q[i];
        sum += q[i];
      }
      const double product = static_cast<double>(integers) * group.scale * x.scales[at];
      const double minimum = static_cast<double>(sum) * group.minimum * x.scales[at];
      return {product - minimum, std::abs(product) + std::abs(minimum)};
    }
    const BlockGroup group = GetGroup(format, Panel(row), k, g, row % kLanes);
    for (int64_t i = 0; i < kGroupSize; ++i) integers += int64_t{group.q[i]} * q[i];
    const double product = static_cast<double>(integers) * GroupScale(format, group) * x.scales[at];
    return {product, std::abs(product)};
  }

  BlockFormat format;
  int64_t n, k, n_panels;
  AlignedBuffer panels;
};

struct ProductOptions {
  const float* bias = nullptr;
  bool accumulate = false;
  int64_t first_row = 0;
  int64_t rows = -1;
};

// y is [m][n] and holds the initial values of the sums.
void Multiply(const KernelTable& table, const Quantized& x, int64_t m, const Blocks& w,
              const ProductOptions& options, std::vector<float>& y) {
  const int64_t first = options.first_row;
  const BlockMatMulArgs args{.q = x.q.data() + first * x.ldq,
                             .ldq = x.ldq,
                             .scales = x.scales.data() + first * x.ldgroups,
                             .starts = x.starts.data() + first * x.ldgroups,
                             .sums = x.sums.data() + first * x.ldgroups,
                             .ldgroups = x.ldgroups,
                             .m = options.rows < 0 ? m : options.rows,
                             .panels = w.panels.data(),
                             .n_panels = w.n_panels,
                             .n_columns = w.n,
                             .k = w.k,
                             .bias = options.bias,
                             .y = y.data() + first * w.n,
                             .ldy = w.n,
                             .accumulate = options.accumulate};
  table.blocks->matmul(w.format)(args);
}

std::vector<float> Product(const KernelTable& table, const Quantized& x, int64_t m, const Blocks& w,
                           const ProductOptions& options = {}) {
  std::vector<float> y(static_cast<size_t>(m * w.n), options.accumulate ? 0.75f : 99.0f);
  Multiply(table, x, m, w, options, y);
  return y;
}

const KernelTable& Reference() { return *RunnableKernelTables().front(); }

class BlockMatMulTest : public testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& table() const { return *GetParam(); }
};
std::vector<const KernelTable*> Tables() {
  std::vector<const KernelTable*> tables = {RunnableKernelTables().begin(),
                                            RunnableKernelTables().end()};
  if (EmulatedAmx() != nullptr) tables.push_back(EmulatedAmx());
  return tables;
}
std::string TableName(const testing::TestParamInfo<const KernelTable*>& param) {
  std::string name(param.param->key);
  for (char& c : name) c = c == '+' ? '_' : c;
  return name;
}
INSTANTIATE_TEST_SUITE_P(Tables, BlockMatMulTest, testing::ValuesIn(Tables()), TableName);

TEST_P(BlockMatMulTest, RowsAreRoundedAsTheReferenceRoundsThem) {
  for (const BlockFormat format : kBlockFormats) {
    for (const int64_t k : {1, 15, 16, 17, 31, 32, 33, 64, 95, 300}) {
      const Activations a = Activations::Random(5, k, static_cast<uint32_t>(k));
      const Quantized ours(table(), a, format);
      const Quantized reference(Reference(), a, format);
      EXPECT_EQ(ours.q, reference.q) << k;
      EXPECT_EQ(ours.starts, reference.starts) << k;
      EXPECT_TRUE(SameBits(ours.scales, reference.scales)) << k;
      EXPECT_TRUE(SameBits(ours.sums, reference.sums)) << k;
    }
  }
}

TEST_P(BlockMatMulTest, ARoundedValueIsWithinHalfAStep) {
  const Activations a = Activations::Random(7, 217, 3);
  const Quantized x(table(), a, BlockFormat::kInt8);
  for (int64_t r = 0; r < a.m; ++r) {
    for (int64_t g = 0; g < x.groups; ++g) {
      const double scale = x.scales[static_cast<size_t>(r * x.ldgroups + g)];
      int32_t sum = 0;
      for (int64_t c = g * kGroupSize; c < (g + 1) * kGroupSize; ++c) {
        const int q = x.q[static_cast<size_t>(r * x.ldq + c)];
        sum += q;
        if (c >= a.k) {
          EXPECT_EQ(q, 0);
          continue;
        }
        const double value = Bf16ToFloat(a.x[static_cast<size_t>(r * a.k + c)]);
        EXPECT_LE(std::abs(scale * q - value), 0.50001 * scale);
      }
      EXPECT_EQ(x.starts[static_cast<size_t>(r * x.ldgroups + g)], -kInt8Offset * sum);
      EXPECT_EQ(x.sums[static_cast<size_t>(r * x.ldgroups + g)], static_cast<float>(scale * sum));
    }
  }
}

TEST_P(BlockMatMulTest, TiesGoToEven) {
  // absmax is 127: the step is 1 and halves are ties.
  const Activations a(1, 32, [](int64_t, int64_t c) {
    constexpr float kValues[] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 3.25f};
    return c < 8 ? kValues[c] : 0.0f;
  });
  const Quantized x(table(), a, BlockFormat::kInt8);
  const std::vector<int8_t> first(x.q.begin(), x.q.begin() + 8);
  EXPECT_EQ(first, (std::vector<int8_t>{127, 0, 2, 2, 0, -2, -2, 3}));
}

TEST_P(BlockMatMulTest, AgreesWithDoubleSumsOverTheSameIntegers) {
  constexpr struct {
    int64_t m, n, k;
  } kShapes[] = {{1, 1, 1},    {1, 17, 33},   {2, 16, 64},  {3, 47, 95},   {4, 50, 512},
                 {5, 33, 700}, {9, 100, 640}, {17, 64, 31}, {40, 31, 1100}};
  for (const BlockFormat format : kBlockFormats) {
    for (const auto& s : kShapes) {
      const int64_t k = Fitting(format, s.k);
      const Activations a = Activations::Random(s.m, k, 5);
      const Quantized x(table(), a, format);
      const Blocks w = Blocks::Random(format, s.n, k, 6);

      const std::vector<float> y = Product(table(), x, s.m, w);

      for (int64_t m = 0; m < s.m; ++m) {
        for (int64_t n = 0; n < s.n; ++n) {
          double sum = 0;
          double magnitude = 0;
          for (int64_t g = 0; g < x.groups; ++g) {
            const Blocks::Term term = w.At(n, g, x, m);
            sum += term.value;
            magnitude += term.magnitude;
          }
          // The product of scales (or of scale and sum) and each addition round once.
          const double tolerance = static_cast<double>(2 * x.groups + 2) * 0x1p-24 * magnitude;
          ASSERT_NEAR(y[static_cast<size_t>(m * s.n + n)], sum, tolerance)
              << BlockFormatName(format) << " " << m << " " << n << " of " << s.n << " k " << k;
        }
      }
    }
  }
}

TEST_P(BlockMatMulTest, EveryTableGivesTheBitsOfTheReferenceForAnyNumberOfRows) {
  for (const BlockFormat format : kBlockFormats) {
    for (const auto& [n, least] : {std::pair<int64_t, int64_t>{70, 1190}, {33, 61}, {5, 512}}) {
      const int64_t k = Fitting(format, least);
      const Activations a = Activations::Random(35, k, 7);
      const Quantized x(Reference(), a, format);
      const Blocks w = Blocks::Random(format, n, k, 8);
      std::vector<float> bias(static_cast<size_t>(n));
      for (size_t i = 0; i < bias.size(); ++i) bias[i] = 0.1f * static_cast<float>(i) - 2;

      for (const ProductOptions& options :
           {ProductOptions{}, ProductOptions{.bias = bias.data()},
            ProductOptions{.bias = bias.data(), .accumulate = true}}) {
        const std::vector<float> expected = Product(Reference(), x, a.m, w, options);
        EXPECT_TRUE(SameBits(Product(table(), x, a.m, w, options), expected));

        for (int64_t rows = 1; rows <= 18; ++rows) {
          std::vector<float> y(expected.size(), options.accumulate ? 0.75f : 99.0f);
          for (int64_t first = 0; first < a.m; first += rows) {
            ProductOptions part = options;
            part.first_row = first;
            part.rows = std::min(rows, a.m - first);
            Multiply(table(), x, a.m, w, part, y);
          }
          EXPECT_TRUE(SameBits(y, expected))
              << BlockFormatName(format) << " rows " << rows << " n " << n << " k " << k;
        }
      }
    }
  }
}

// Many rows are multiplied in another form on AVX2, in blocks of 192 rows and eight groups.
TEST_P(BlockMatMulTest, ManyRowsGiveTheBitsOfTheReference) {
  std::mt19937 rng(9);
  constexpr int64_t kN = 37;
  constexpr int64_t kK = 300;
  const Activations random = Activations::Random(205, kK, 10);
  const Activations extreme(205, kK, [&](int64_t, int64_t) { return rng() % 2 == 0 ? 127 : -127; });
  const Blocks any = Blocks::Random(BlockFormat::kInt8, kN, kK, 11);
  const Blocks ends(BlockFormat::kInt8, kN, kK, [&](int64_t, int64_t) {
    BlockGroup group{.scale = FloatToF16(0.5f)};
    for (int8_t& q : group.q) q = rng() % 2 == 0 ? 127 : -128;
    return group;
  });
  const std::vector<float> bias(kN, 0.3f);
  for (const auto& [a, w] : {std::pair(&random, &any), std::pair(&extreme, &ends)}) {
    const Quantized x(Reference(), *a, BlockFormat::kInt8);
    for (const int64_t rows : {47, 48, 59, 205}) {
      for (const ProductOptions& options :
           {ProductOptions{.rows = rows},
            ProductOptions{.bias = bias.data(), .accumulate = true, .rows = rows}}) {
        EXPECT_TRUE(SameBits(Product(table(), x, a->m, *w, options),
                             Product(Reference(), x, a->m, *w, options)))
            << rows << " rows";
      }
    }
  }
}

// The largest sums of a group: 32 * 127 * 128 in magnitude, with every sign.
TEST_P(BlockMatMulTest, ExtremesNeverSaturate) {
  constexpr int64_t kK = 64;
  for (const BlockFormat format : kPlainFormats) {
    const auto lowest = static_cast<int8_t>(-BlockOffset(format));
    const int8_t highest = static_cast<int8_t>(-lowest - 1);
    for (const int8_t q : {lowest, highest, int8_t{0}}) {
      for (const float sign : {1.0f, -1.0f}) {
        const Activations a(3, kK, [&](int64_t, int64_t) { return sign * 127; });
        const Quantized x(table(), a, format);
        const Blocks w(format, 20, kK, [&](int64_t, int64_t) {
          BlockGroup group{.scale = FloatToF16(1)};
          std::fill_n(group.q, kGroupSize, q);
          return group;
        });
        for (const float y : Product(table(), x, 3, w)) {
          EXPECT_EQ(y, sign * 127 * static_cast<float>(q * kK));
        }
      }
    }
  }
}

// The ends of E2M1 with the ends of E8M0: sums of integers are exact, and powers of two only shift.
TEST_P(BlockMatMulTest, ExtremesOfMxfp4AreExact) {
  constexpr int64_t kK = 64;
  for (const int8_t q : {int8_t{12}, int8_t{-12}, int8_t{1}, int8_t{0}}) {
    for (const int e : {1, 2, 128, 230}) {
      const Activations a(3, kK, [](int64_t r, int64_t) { return r == 1 ? -127 : 127; });
      const Quantized x(table(), a, BlockFormat::kMxfp4);
      const Blocks w(BlockFormat::kMxfp4, 20, kK, [&](int64_t, int64_t) {
        BlockGroup group{.scale = static_cast<uint16_t>(e)};
        std::fill_n(group.q, kGroupSize, q);
        return group;
      });
      const std::vector<float> y = Product(table(), x, 3, w);
      for (size_t i = 0; i < y.size(); ++i) {
        const float sign = i / 20 == 1 ? -1.0f : 1.0f;
        EXPECT_EQ(y[i], std::ldexp(sign * 127 * static_cast<float>(q * kK), e - 128)) << i;
      }
    }
  }
}

// Scales and minimums of 63, nibbles of 15 or 0.
TEST_P(BlockMatMulTest, ExtremesOfQ4KAreExact) {
  for (const uint8_t nibble : {15, 0}) {
    const Activations a(3, kSuperSize, [&](int64_t r, int64_t) { return r == 1 ? -127 : 127; });
    const Quantized x(table(), a, BlockFormat::kInt4K);
    Blocks w(BlockFormat::kInt4K, 20, kSuperSize);
    int at = 0;
    const auto block = MakeQ4K(1, 0.5f, [&] { return at++ < 16 ? 255 : nibble * 17; });
    for (int64_t row = 0; row < w.n; ++row) {
      PutQ4K(w.Panel(row), w.k, 0, row % kLanes, block.data());
    }

    const std::vector<float> y = Product(table(), x, 3, w);

    for (size_t i = 0; i < y.size(); ++i) {
      const float sign = i / 20 == 1 ? -1.0f : 1.0f;
      EXPECT_EQ(y[i], sign * 127 * 256 * (63.0f * nibble - 0.5f * 63)) << i;
    }
  }
}

TEST_P(BlockMatMulTest, TinyScalesAndHugeNeighboursAreExact) {
  for (const BlockFormat format : kPlainFormats) {
    // Row 0 tiny, row 1 with one huge value, row 2 zeros, row 3 below the range of scales.
    const Activations a(4, 64, [](int64_t r, int64_t c) {
      if (r == 0) return 0x1p-118f;
      if (r == 1) return c == 40 ? 3e38f : 1.0f;
      return r == 2 ? 0.0f : 0x1p-120f;
    });
    const Quantized x(table(), a, format);
    const Blocks w(format, 16, 64, [](int64_t row, int64_t) {
      BlockGroup group{.scale = static_cast<uint16_t>(row == 0 ? 1 : FloatToF16(0.5f))};
      std::fill_n(group.q, kGroupSize, int8_t{1});  // row 0: the smallest subnormal scale
      return group;
    });

    const std::vector<float> y = Product(table(), x, 4, w);

    EXPECT_TRUE(SameBits(y, Product(Reference(), x, 4, w)));
    EXPECT_FLOAT_EQ(y[1], 64 * 0.5f * 0x1p-118f);
    EXPECT_NEAR(y[0], 64 * 0x1p-24 * 0x1p-118, 64 * 127 * 0x1p-149);  // its products are subnormal
    const float huge = Bf16ToFloat(FloatToBf16(3e38f));
    EXPECT_FLOAT_EQ(y[16 + 1], 0.5f * huge);  // ones in its group round to 0
    EXPECT_FLOAT_EQ(y[16], 0x1p-24f * huge);
    for (size_t i = 32; i < 64; ++i) EXPECT_EQ(y[i], 0.0f);
  }
}

TEST_P(BlockMatMulTest, NanAndInfinityMakeTheirRowNanAndNoOther) {
  for (const BlockFormat format : kBlockFormats) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const int64_t at : {0, 17, 63, 70}) {
        const int64_t k = Fitting(format, 71);
        const Activations a(3, k,
                            [&](int64_t r, int64_t c) { return r == 1 && c == at ? bad : 0.5f; });
        const Quantized x(table(), a, format);
        const Blocks w = Blocks::Random(format, 18, k, 9);

        const std::vector<float> y = Product(table(), x, 3, w);

        for (size_t i = 0; i < y.size(); ++i) {
          EXPECT_EQ(std::isnan(y[i]), i / 18 == 1) << bad << " at " << at << " element " << i;
        }
      }
    }
  }
}

TEST_P(BlockMatMulTest, PaddingColumnsAreNotWritten) {
  for (const BlockFormat format : kBlockFormats) {
    const int64_t k = Fitting(format, 40);
    const Activations a = Activations::Random(5, k, 11);
    const Quantized x(table(), a, format);
    const Blocks w = Blocks::Random(format, 21, k, 12);
    std::vector<float> y(5 * 24, 77.0f);
    const BlockMatMulArgs args{.q = x.q.data(),
                               .ldq = x.ldq,
                               .scales = x.scales.data(),
                               .starts = x.starts.data(),
                               .sums = x.sums.data(),
                               .ldgroups = x.ldgroups,
                               .m = 5,
                               .panels = w.panels.data(),
                               .n_panels = w.n_panels,
                               .n_columns = 21,
                               .k = k,
                               .bias = nullptr,
                               .y = y.data(),
                               .ldy = 24,
                               .accumulate = false};
    table().blocks->matmul(format)(args);
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i] == 77.0f, i % 24 >= 21) << i;
  }
}

}  // namespace
}  // namespace tandem::engine
