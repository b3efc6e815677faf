// The common arithmetic: every kernel of every table that has it gives the same bits, on every
// architecture. The digests below are the same for x86-64 and arm64 (tests/arm64 runs this under
// emulation).
#include "engine/kernels/arithmetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/base/error.h"
#include "engine/kernels/block_formats.h"
#include "engine/kernels/kernels.h"

namespace tandem::engine {
namespace {

std::vector<const KernelTable*> CommonTables() {
  std::vector<const KernelTable*> tables;
  for (const KernelTable* table : RunnableKernelTables()) {
    if (ArithmeticOf(*table) == kCommonArithmetic) tables.push_back(table);
  }
  return tables;
}

class CommonArithmetic : public testing::TestWithParam<const KernelTable*> {};
INSTANTIATE_TEST_SUITE_P(Tables, CommonArithmetic, testing::ValuesIn(CommonTables()),
                         [](const auto& test_case) {
                           std::string name(test_case.param->key);
                           for (char& c : name) c = c == '+' ? '_' : c;
                           return name;
                         });
// A CPU may have the reference only.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommonArithmetic);

// FNV-1a of the bits of f32 and bf16 values.
class Digest {
 public:
  template <class T>
  void Add(const std::vector<T>& values) {
    for (const T& value : values) {
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(value));
      state_ = (state_ ^ bits) * 1099511628211u;
    }
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 14695981039346656037u;
};

// Numbers of many magnitudes in (-scale, scale), from integers alone.
std::vector<float> Numbers(size_t n, uint32_t seed, float scale = 1) {
  std::vector<float> numbers(n);
  for (float& number : numbers) {
    seed = seed * 1664525u + 1013904223u;
    const float magnitude = static_cast<float>(1u << (seed >> 28)) * 0x1p-15f;
    number = static_cast<float>(static_cast<int32_t>(seed << 4)) * 0x1p-31f * magnitude * scale;
  }
  return numbers;
}
template <class T>
std::vector<T> Typed(const std::vector<float>& from) {
  if constexpr (std::is_same_v<T, float>) {
    return from;
  } else {
    std::vector<T> to(from.size());
    for (size_t i = 0; i < from.size(); ++i) to[i] = FloatToBf16(from[i]);
    return to;
  }
}

// Products with these numbers of rows, over several blocks of k.
template <class T>
void DigestProducts(const KernelTable& table, std::initializer_list<int64_t> rows, Digest& digest) {
  for (const int64_t m : rows) {
    for (const int64_t k : {38, 706}) {
      constexpr int64_t kN = 83;
      constexpr int64_t kPanels = (kN + kLanes - 1) / kLanes;
      const auto x = Typed<T>(Numbers(static_cast<size_t>(m * k), 1));
      const auto w = Typed<T>(Numbers(static_cast<size_t>(kPanels * kLanes * k), 2));
      const std::vector<float> bias = Numbers(kN, 3);
      std::vector<float> y = Numbers(static_cast<size_t>(m * kN), 4);
      table.typed<T>().matmul({.x = x.data(),
                               .ldx = k,
                               .m = m,
                               .panels = w.data(),
                               .n_panels = kPanels,
                               .n_columns = kN,
                               .k = k,
                               .bias = bias.data(),
                               .y = y.data(),
                               .ldy = kN,
                               .accumulate = true});
      digest.Add(y);
    }
  }
}

TEST_P(CommonArithmetic, Products) {
  Digest digest;
  DigestProducts<float>(*GetParam(), {1, 37}, digest);
  EXPECT_EQ(digest.value(), 9593485023740058964u);
  Digest of_bf16;
  DigestProducts<Bf16>(*GetParam(), {1, 37}, of_bf16);
  EXPECT_EQ(of_bf16.value(), 4999247927900830331u);
}

// Tables without an instruction for pairs widen so many rows of bf16 in blocks (matmul_wide.inc).
TEST_P(CommonArithmetic, ProductsOfManyRows) {
  Digest digest;
  DigestProducts<float>(*GetParam(), {100}, digest);
  EXPECT_EQ(digest.value(), 4349159950766483253u);
  Digest of_bf16;
  DigestProducts<Bf16>(*GetParam(), {100}, of_bf16);
  EXPECT_EQ(of_bf16.value(), 591981715645336135u);
}

// Many rows are widened in blocks where there is no instruction for pairs; few are not.
TEST_P(CommonArithmetic, ManyRowsOfBf16GiveTheBitsOfFew) {
  constexpr int64_t kM = 77;
  constexpr int64_t kN = 15 * kLanes - 5;
  for (const int64_t k : {38, 706}) {
    const auto x = Typed<Bf16>(Numbers(static_cast<size_t>(kM * k), 1));
    const auto w = Typed<Bf16>(Numbers(static_cast<size_t>(15 * kLanes * k), 2));
    const std::vector<float> bias = Numbers(kN, 3);
    std::vector<float> many = Numbers(kM * kN, 4);
    std::vector<float> few = many;
    const auto multiply = [&](std::vector<float>& y, int64_t first, int64_t rows) {
      GetParam()->bf16.matmul({.x = x.data() + first * k,
                               .ldx = k,
                               .m = rows,
                               .panels = w.data(),
                               .n_panels = 15,
                               .n_columns = kN,
                               .k = k,
                               .bias = bias.data(),
                               .y = y.data() + first * kN,
                               .ldy = kN,
                               .accumulate = true});
    };
    multiply(many, 0, kM);
    for (int64_t first = 0; first < kM; first += 7) multiply(few, first, 7);
    EXPECT_EQ(many, few) << k;
  }
}

// Any bytes are integers of a format; the scales are made finite.
std::vector<std::byte> RandomPanels(BlockFormat format, int64_t n_panels, int64_t k) {
  const auto panel_bytes = static_cast<size_t>(BlockPanelBytes(format, k));
  std::vector<std::byte> panels(panel_bytes * static_cast<size_t>(n_panels));
  uint32_t state = 5;
  const auto next = [&] { return static_cast<uint8_t>((state = state * 1664525u + 1) >> 24); };
  for (int64_t lane = 0; lane < n_panels * kLanes; ++lane) {
    std::byte* panel = panels.data() + lane / kLanes * static_cast<int64_t>(panel_bytes);
    if (format == BlockFormat::kInt4K) {
      for (int64_t b = 0; b < k / kSuperSize; ++b) {
        std::byte block[kQ4KBytes];
        for (std::byte& byte : block) byte = static_cast<std::byte>(next());
        const uint16_t factors[2] = {FloatToF16(0.01f), FloatToF16(0.02f)};
        std::memcpy(block, factors, sizeof(factors));
        PutQ4K(panel, k, b, lane % kLanes, block);
      }
      continue;
    }
    for (int64_t g = 0; g < GroupsOf(k); ++g) {
      BlockGroup group{.scale = FloatToF16(0.001f * static_cast<float>(1 + next()))};
      if (format == BlockFormat::kMxfp4) group.scale = static_cast<uint16_t>(110 + next() % 20);
      for (int8_t& q : group.q) {
        const int32_t offset = BlockOffset(format);
        q = static_cast<int8_t>(format == BlockFormat::kMxfp4 ? kMxfp4Numbers[next() % 16] - offset
                                                              : next() % (2 * offset) - offset);
      }
      PutGroup(format, panel, k, g, lane % kLanes, group);
    }
  }
  return panels;
}

TEST_P(CommonArithmetic, ProductsOfBlocks) {
  const BlockKernels& kernels = *GetParam()->blocks;
  constexpr int64_t kRows = 19;
  constexpr int64_t kN = 83;
  constexpr int64_t kK = 768;
  constexpr int64_t kGroups = kK / kGroupSize;
  constexpr int64_t kPanels = (kN + kLanes - 1) / kLanes;
  const auto x = Typed<Bf16>(Numbers(kRows * kK, 6));
  Digest digest;
  for (const BlockFormat format : kBlockFormats) {
    std::vector<int8_t> q(kRows * kK);
    std::vector<float> scales(kRows * kGroups);
    std::vector<int32_t> starts(kRows * kGroups);
    std::vector<float> sums(kRows * kGroups);
    kernels.quantize_rows({.x = x.data(),
                           .ldx = kK,
                           .rows = kRows,
                           .cols = kK,
                           .offset = BlockOffset(format),
                           .q = q.data(),
                           .ldq = kK,
                           .scales = scales.data(),
                           .starts = starts.data(),
                           .sums = sums.data(),
                           .ldgroups = kGroups});
    digest.Add(q);
    digest.Add(scales);
    digest.Add(sums);
    const std::vector<std::byte> panels = RandomPanels(format, kPanels, kK);
    const std::vector<float> bias = Numbers(kN, 7);
    std::vector<float> y = Numbers(kRows * kN, 8);
    kernels.matmul(format)({.q = q.data(),
                            .ldq = kK,
                            .scales = scales.data(),
                            .starts = starts.data(),
                            .sums = sums.data(),
                            .ldgroups = kGroups,
                            .m = kRows,
                            .panels = panels.data(),
                            .n_panels = kPanels,
                            .n_columns = kN,
                            .k = kK,
                            .bias = bias.data(),
                            .y = y.data(),
                            .ldy = kN,
                            .accumulate = true});
    digest.Add(y);
  }
  EXPECT_EQ(digest.value(), 13077325873804300632u);
}

// The rows of one kv head: two query heads at positions 1,030 to 1,037, so two chunks are merged.
template <class T>
void DigestAttention(const KernelTable& table, Digest& digest) {
  constexpr int64_t kHead = 40;
  constexpr int64_t kQueries = 8;
  constexpr int64_t kRows = 2 * kQueries;
  constexpr int64_t kFirst = 1030;
  constexpr int64_t kBlocks = (kFirst + kQueries + kLanes - 1) / kLanes;
  constexpr int64_t kStride = kHead * kLanes;
  const auto q = Typed<T>(Numbers(kRows * kHead, 9, 4));
  const auto keys = Typed<T>(Numbers(kBlocks * kStride, 10, 4));
  const auto values = Typed<T>(Numbers(kBlocks * kStride, 11));
  std::vector<BlockId> blocks(kBlocks);
  for (int64_t b = 0; b < kBlocks; ++b) blocks[static_cast<size_t>(b)].value = b;
  AlignedBuffer scratch(static_cast<size_t>(AttentionScratchBytes(kRows, kHead, kHead, kHead)));
  for (const auto& [window, soft_cap] : {std::pair<int64_t, float>{0, 0.0f}, {100, 20.0f}}) {
    constexpr int64_t kStrideAcc = 48;
    struct State {
      std::vector<float> max = std::vector<float>(kRows);
      std::vector<float> sum = std::vector<float>(kRows * kLanes);
      std::vector<float> acc = std::vector<float>(kRows * kStrideAcc);
      AttentionState view() { return {max.data(), sum.data(), acc.data(), kRows, kStrideAcc}; }
    };
    State states[2];
    for (int64_t chunk = 0; chunk < 2; ++chunk) {
      AttentionArgs<T> args = {};
      args.q = q.data();
      args.ldq = kHead;
      args.rows = kRows;
      args.group = 2;
      args.head_dim = kHead;
      args.value_dim = kHead;
      args.first_position = kFirst;
      args.key_first = chunk * kKeyChunk;
      args.scale = 0.16f;
      args.window = window;
      args.soft_cap = soft_cap;
      args.keys = reinterpret_cast<const std::byte*>(keys.data());
      args.values = reinterpret_cast<const std::byte*>(values.data());
      args.key_stride_bytes = kStride * static_cast<int64_t>(sizeof(T));
      args.value_stride_bytes = args.key_stride_bytes;
      args.blocks = blocks.data();
      args.scratch = scratch.data();
      table.typed<T>().attention_chunk(args, states[chunk].view());
    }
    table.attention_merge(states[0].view(), states[1].view());
    std::vector<T> out(kRows * kHead);
    std::vector<float> lse(kRows);
    table.typed<T>().attention_finish(states[0].view(), 2, kHead, out.data(), 2 * kHead, lse.data(),
                                      2);
    digest.Add(out);
    digest.Add(lse);
  }
}

// As DigestAttention, with int8 keys and values. The first rows are few, so that no tile is widened
// as a whole; the others are many.
void DigestInt8Attention(const KernelTable& table, Digest& digest) {
  constexpr int64_t kHead = 32;
  constexpr int64_t kFirst = 700;
  constexpr int64_t kQueries = 60;
  constexpr int64_t kBlocks = (kFirst + kQueries + kLanes - 1) / kLanes;
  constexpr int64_t kBytes = kLanes * (kHead + static_cast<int64_t>(sizeof(float)));
  std::vector<std::byte> heads(2 * kBlocks * kBytes);
  const std::vector<float> scales = Numbers(2 * kBlocks * kLanes, 12);
  const std::vector<float> integers = Numbers(2 * kBlocks * kLanes * kHead, 13, 40);
  for (int64_t b = 0; b < 2 * kBlocks; ++b) {
    std::byte* to = heads.data() + b * kBytes;
    std::memcpy(to, scales.data() + b * kLanes, kLanes * sizeof(float));
    for (int64_t i = 0; i < kLanes * kHead; ++i) {
      const float x = integers[static_cast<size_t>(b * kLanes * kHead + i)];
      to[kLanes * sizeof(float) + static_cast<size_t>(i)] =
          static_cast<std::byte>(static_cast<int8_t>(std::clamp(x, -127.0f, 127.0f)));
    }
  }
  const auto q = Typed<Bf16>(Numbers(kQueries * kHead, 14));
  std::vector<BlockId> blocks(kBlocks);
  for (int64_t b = 0; b < kBlocks; ++b) blocks[static_cast<size_t>(b)].value = b;
  AlignedBuffer scratch(static_cast<size_t>(AttentionScratchBytes(kQueries, kHead, kHead, kHead)));
  for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 3}, {3, kQueries - 3}}) {
    std::vector<float> max(kQueries), sum(kQueries * kLanes), acc(kQueries * kHead);
    const AttentionState state = {max.data(), sum.data(), acc.data(), rows, kHead};
    AttentionArgs<Bf16> args = {};
    args.q = q.data() + first * kHead;
    args.ldq = kHead;
    args.rows = rows;
    args.group = 1;
    args.head_dim = kHead;
    args.value_dim = kHead;
    args.first_position = kFirst + first;
    args.scale = 0.16f;
    args.keys = heads.data();
    args.values = heads.data() + kBlocks * kBytes;
    args.key_stride_bytes = kBytes;
    args.value_stride_bytes = kBytes;
    args.blocks = blocks.data();
    args.is_int8 = true;
    args.scratch = scratch.data();
    table.bf16.attention_chunk(args, state);
    std::vector<Bf16> out(static_cast<size_t>(rows * kHead));
    table.bf16.attention_finish(state, 1, kHead, out.data(), kHead, nullptr, 0);
    digest.Add(out);
  }
}

TEST_P(CommonArithmetic, AttentionOfInt8) {
  Digest digest;
  DigestInt8Attention(*GetParam(), digest);
  EXPECT_EQ(digest.value(), 8383861664119991001u);
}

TEST_P(CommonArithmetic, Attention) {
  Digest digest;
  DigestAttention<float>(*GetParam(), digest);
  EXPECT_EQ(digest.value(), 16124975878950565965u);
  Digest of_bf16;
  DigestAttention<Bf16>(*GetParam(), of_bf16);
  EXPECT_EQ(of_bf16.value(), 3227288433471722776u);
}

template <class Out>
void DigestRows(const KernelTable& table, Digest& digest) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kCols = 90;
  const std::vector<float> x = Numbers(kRows * kCols, 12, 30);
  const std::vector<float> up = Numbers(kRows * kCols, 13, 30);
  const std::vector<float> gamma = Numbers(kCols, 14);
  const std::vector<float> beta = Numbers(kCols, 15);
  std::vector<Out> y(kRows * kCols);
  std::vector<float> stats(2 * kRows);
  NormArgs<Out> norm = {x.data(),    kCols, kRows,    kCols, gamma.data(),
                        beta.data(), 1e-5f, y.data(), kCols, stats.data()};
  const TypedKernels<Out>& kernels = table.typed<Out>();
  kernels.rms_norm(norm);
  digest.Add(y);
  kernels.layer_norm(norm);
  digest.Add(y);
  digest.Add(stats);
  const std::vector<int32_t> positions = {0, 3, 1, 2, 3};
  const std::vector<float> angles = Numbers(4 * 22, 16);
  for (const bool interleaved : {false, true}) {
    kernels.rope({x.data(), kCols, kRows, 3, 30, 22, interleaved, positions.data(), angles.data(),
                  y.data(), kCols});
    digest.Add(y);
  }
  for (const Activation activation :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kRelu, Activation::kGelu,
        Activation::kRelu2, Activation::kClampedSwiglu}) {
    const PointwiseArgs<Out> args = {x.data(), up.data(),  kCols,    kRows,
                                     kCols,    activation, y.data(), kCols};
    kernels.gated_activation(args);
    digest.Add(y);
    if (activation == Activation::kClampedSwiglu) continue;
    kernels.activate(args);
    digest.Add(y);
  }
}

TEST_P(CommonArithmetic, Rows) {
  Digest digest;
  DigestRows<float>(*GetParam(), digest);
  EXPECT_EQ(digest.value(), 2540622677045069557u);
  Digest of_bf16;
  DigestRows<Bf16>(*GetParam(), of_bf16);
  EXPECT_EQ(of_bf16.value(), 9611878738511200410u);
}

TEST_P(CommonArithmetic, SoftmaxAndPointwise) {
  const KernelTable& table = *GetParam();
  const std::vector<float> x = Numbers(10'001, 17, 60);
  const auto n = static_cast<int64_t>(x.size());
  Digest digest;
  std::vector<float> max(3);
  std::vector<float> sum(3);
  for (int64_t b = 0; b < 3; ++b) {
    const int64_t first = b * kVocabBlock;
    table.vocab_block(x.data() + first, std::min(kVocabBlock, n - first), &max[b], &sum[b]);
  }
  digest.Add(max);
  digest.Add(sum);
  digest.Add(std::vector<float>{table.vocab_merge(max.data(), sum.data(), 3)});
  std::vector<float> y(x.size());
  table.sigmoid(x.data(), n, y.data());
  digest.Add(y);
  table.soft_cap(x.data(), 30, n, y.data());
  digest.Add(y);
  table.clamp(x.data(), 7, n, y.data());
  digest.Add(y);
  EXPECT_EQ(digest.value(), 2608867011032764123u);
}

TEST(Arithmetic, ReferenceHasItsOwn) {
  EXPECT_EQ(ArithmeticOf(*RunnableKernelTables().front()), "reference");
}

// A process chooses its table once, so each case runs in a child.
int ReproducibleStatus(const char* isa) {
  unsetenv("TANDEM_REPRODUCIBLE");
  setenv("TANDEM_FORCE_ISA", isa, 1);
  try {
    UseCommonArithmetic();
    return ArithmeticOf(Kernels()) == kCommonArithmetic ? 0 : 1;
  } catch (const Error& e) {
    return e.code() == ErrorCode::kInvalidArgument ? 2 : 3;
  }
}

TEST(ArithmeticDeathTest, ReproducibleTakesATableOfTheCommonArithmeticOrRefuses) {
  GTEST_FLAG_SET(death_test_style, "fast");
  EXPECT_EXIT(std::exit(ReproducibleStatus("reference")), testing::ExitedWithCode(2), "");
  EXPECT_EXIT(std::exit(ReproducibleStatus("")),
              testing::ExitedWithCode(CommonTables().empty() ? 2 : 0), "");
  for (const KernelTable* table : CommonTables()) {
    EXPECT_EXIT(std::exit(ReproducibleStatus(std::string(table->isa).c_str())),
                testing::ExitedWithCode(0), "");
    EXPECT_EXIT(std::exit(ReproducibleStatus(std::string(table->key).c_str())),
                testing::ExitedWithCode(0), "");
  }
}

TEST(ArithmeticDeathTest, AnotherArithmeticInUseIsAnError) {
  GTEST_FLAG_SET(death_test_style, "fast");
  EXPECT_EXIT(
      {
        setenv("TANDEM_FORCE_ISA", "reference", 1);
        Kernels();
        std::exit(ReproducibleStatus(""));
      },
      testing::ExitedWithCode(2), "");
}

}  // namespace
}  // namespace tandem::engine
