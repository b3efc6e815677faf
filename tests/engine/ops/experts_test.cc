#include "engine/ops/experts.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

#include "engine/base/error.h"
#include "tests/engine/ops/ops_test_support.h"

namespace tandem::engine {
namespace {

using ExpertsTest = TableTest;
INSTANTIATE_TEST_SUITE_P(Tables, ExpertsTest, testing::ValuesIn(AllTables()), TableName);

// One projection of every expert. The formats are used in turn.
class TestExperts {
 public:
  TestExperts(DType dtype, const std::vector<BlockFormat>& formats, int64_t n_experts, int64_t n,
              int64_t k) {
    for (int64_t e = 0; e < n_experts; ++e) {
      const BlockFormat block = formats[static_cast<size_t>(e) % formats.size()];
      const auto seed = static_cast<uint32_t>(100 + e);
      if (block == BlockFormat::kNone) {
        panels_.push_back(plain_.emplace_back(dtype, n, k, seed).matrix());
      } else {
        panels_.push_back(blocks_.emplace_back(block, n, k, seed).matrix());
      }
      biases_.push_back(RandomFloats(n, 1000 + seed));
    }
  }

  const PanelMatrix& panels(int64_t e) const { return panels_[static_cast<size_t>(e)]; }
  const float* bias(int64_t e) const { return biases_[static_cast<size_t>(e)].data(); }
  ExpertMatrices matrices() const {
    return {static_cast<int64_t>(panels_.size()),
            [this](int64_t e) -> const PanelMatrix& { return panels(e); },
            [this](int64_t e) { return bias(e); }};
  }

 private:
  std::deque<TestWeight> plain_;
  std::deque<TestBlockWeight> blocks_;
  std::vector<PanelMatrix> panels_;
  std::vector<std::vector<float>> biases_;
};

// A routing whose rows have different experts; low ids are more frequent.
std::vector<float> RandomRouting(int64_t rows, int64_t top_k, int64_t n_experts, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<float> routing;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<float> ids;
    while (static_cast<int64_t>(ids.size()) < top_k) {
      const double place = std::uniform_real_distribution<double>(0, 1)(rng);
      const auto id =
          static_cast<float>(std::floor(place * place * static_cast<double>(n_experts)));
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    routing.insert(routing.end(), ids.begin(), ids.end());
    for (int64_t slot = 0; slot < top_k; ++slot) {
      routing.push_back(std::uniform_real_distribution<float>(-1, 1)(rng));
    }
  }
  return routing;
}

bool EqualBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Case {
  int64_t rows, top_k, n_experts, n, k;
};
constexpr Case kCases[] = {{1, 1, 1, 5, 3},
                           {1, 8, 20, 48, 64},
                           {3, 2, 4, 17, 33},
                           {40, 3, 7, 33, 50},
                           {150, 2, 3, 400, 40}};

struct Formats {
  DType dtype;
  std::vector<BlockFormat> blocks;
  bool needs_super_blocks = false;
};
std::vector<Formats> AllFormats() {
  std::vector<Formats> all = {{DType::kF32, {BlockFormat::kNone}},
                              {DType::kBF16, {BlockFormat::kNone}}};
  for (const BlockFormat block : kBlockFormats) {
    all.push_back({DType::kBF16, {block}, block == BlockFormat::kInt4K});
  }
  all.push_back(
      {DType::kBF16, {BlockFormat::kInt8, BlockFormat::kNone, BlockFormat::kInt4}, false});
  return all;
}

// x of one slot as a matrix of one row, at an aligned address with zero padding.
std::unique_ptr<TestMatrix> RowOf(const TestMatrix& x, int64_t row, int64_t first, int64_t k) {
  std::vector<float> values;
  for (int64_t i = 0; i < k; ++i) values.push_back(x.At(row, first + i));
  return std::make_unique<TestMatrix>(x.matrix().dtype, 1, k, values);
}

TEST_P(ExpertsTest, ASlotHasTheBitsOfMatMulOnItsRowAlone) {
  for (const Formats& formats : AllFormats()) {
    for (const Case& c : kCases) {
      const int64_t k = formats.needs_super_blocks ? RoundUp(c.k, kSuperSize) : c.k;
      const TestExperts experts(formats.dtype, formats.blocks, c.n_experts, c.n, k);
      const TestMatrix routing(DType::kF32, c.rows, 2 * c.top_k,
                               RandomRouting(c.rows, c.top_k, c.n_experts, 7));
      for (const bool shared : {true, false}) {
        const int64_t cols = shared ? k : c.top_k * k;
        const TestMatrix x(formats.dtype, c.rows, cols, RandomFloats(c.rows * cols, 8));
        const int64_t ldy = c.top_k * c.n + 3;
        std::vector<float> y(static_cast<size_t>(c.rows * ldy), -7.0f);
        TestOps ops(table(), 2);

        ExpertMatMul(ops, x, routing, experts.matrices(), y.data(), ldy);

        for (int64_t row = 0; row < c.rows; ++row) {
          for (int64_t slot = 0; slot < c.top_k; ++slot) {
            const auto expert = static_cast<int64_t>(routing.At(row, slot));
            const auto one = RowOf(x, row, shared ? 0 : slot * k, k);
            std::vector<float> wanted(static_cast<size_t>(c.n));
            MatMul(ops, *one, experts.panels(expert), experts.bias(expert), wanted.data(), c.n);
            const float* got = y.data() + row * ldy + slot * c.n;
            ASSERT_TRUE(EqualBits(wanted, {got, got + c.n}))
                << DTypeName(formats.dtype) << " format " << static_cast<int>(formats.blocks[0])
                << " k " << k << " row " << row << " slot " << slot << " shared " << shared;
          }
          EXPECT_EQ(y[static_cast<size_t>((row + 1) * ldy - 1)], -7.0f) << "wrote past a row";
        }
      }
    }
  }
}

TEST_P(ExpertsTest, ARowHasTheSameBitsInEveryChunkOrderAndWithAnyThreads) {
  const Case c{90, 4, 11, 70, 96};
  for (const Formats& formats : AllFormats()) {
    const int64_t k = formats.needs_super_blocks ? kSuperSize : c.k;
    const TestExperts experts(formats.dtype, formats.blocks, c.n_experts, c.n, k);
    const TestMatrix routing(DType::kF32, c.rows, 2 * c.top_k,
                             RandomRouting(c.rows, c.top_k, c.n_experts, 9));
    const TestMatrix x(formats.dtype, c.rows, k, RandomFloats(c.rows * k, 10));
    const int64_t ldy = c.top_k * c.n;
    std::vector<float> whole(static_cast<size_t>(c.rows * ldy));
    TestOps one(table(), 1);
    ExpertMatMul(one, x, routing, experts.matrices(), whole.data(), ldy);

    for (const int threads : {1, 3}) {
      TestOps ops(table(), threads);
      for (const int64_t rows : {1, 2, 17, 64}) {
        std::vector<float> y(whole.size());
        // From the last chunk to the first.
        for (int64_t first = (c.rows - 1) / rows * rows; first >= 0; first -= rows) {
          const int64_t count = std::min(rows, c.rows - first);
          ExpertMatMul(ops, x.Rows(first, count), routing.Rows(first, count), experts.matrices(),
                       y.data() + first * ldy, ldy);
        }
        EXPECT_TRUE(EqualBits(whole, y)) << rows << " rows at a time, " << threads << " threads";
      }
    }
  }
}

TEST_P(ExpertsTest, ExpertIdsOutOfRangeAreCaughtBeforeTheyIndex) {
  const TestExperts experts(DType::kF32, {BlockFormat::kNone}, 3, 4, 5);
  const TestMatrix x(DType::kF32, 1, 5, RandomFloats(5, 1));
  std::vector<float> y(4);
  TestOps ops(table());
  for (const float id : {-1.0f, 3.0f, 1e9f, std::numeric_limits<float>::quiet_NaN(),
                         std::numeric_limits<float>::infinity()}) {
    const TestMatrix routing(DType::kF32, 1, 2, {id, 1.0f});
    EXPECT_THROW(ExpertMatMul(ops, x, routing, experts.matrices(), y.data(), 4), Error) << id;
  }
}

TEST_P(ExpertsTest, CombineSumsTheSlotsInOrder) {
  const int64_t rows = 5, top_k = 3, n = 37;
  const TestMatrix routing(DType::kF32, rows, 2 * top_k, RandomRouting(rows, top_k, 9, 3));
  const std::vector<float> y = RandomFloats(rows * top_k * n, 4);
  TestMatrix out(DType::kF32, rows, n);
  TestOps ops(table(), 2);

  CombineExperts(ops, y.data(), top_k * n, routing, out.matrix());

  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < n; ++i) {
      float sum = 0;
      for (int64_t slot = 0; slot < top_k; ++slot) {
        const float term =
            routing.At(row, top_k + slot) * y[static_cast<size_t>((row * top_k + slot) * n + i)];
        sum = slot == 0 ? term : sum + term;
      }
      ASSERT_EQ(out.At(row, i), sum);
    }
  }
}

// The router in double arithmetic, by sorting.
std::vector<double> PlainRoute(const std::vector<float>& logits, const std::vector<float>& bias,
                               const RouterSpec& spec) {
  const size_t n = logits.size();
  std::vector<double> scores(logits.begin(), logits.end()), choices(n);
  if (spec.score == RouterScore::kSigmoid) {
    for (double& s : scores) s = 1 / (1 + std::exp(-s));
  } else if (!spec.softmax_of_chosen) {
    double sum = 0;
    for (const double s : scores) sum += std::exp(s);
    for (double& s : scores) s = std::exp(s) / sum;
  }
  for (size_t i = 0; i < n; ++i) choices[i] = scores[i] + (bias.empty() ? 0 : double{bias[i]});
  const size_t size = n / static_cast<size_t>(spec.n_groups);
  std::vector<std::pair<double, size_t>> groups;
  for (size_t g = 0; g * size < n; ++g) {
    std::vector<double> members(choices.begin() + static_cast<ptrdiff_t>(g * size),
                                choices.begin() + static_cast<ptrdiff_t>((g + 1) * size));
    std::sort(members.rbegin(), members.rend());
    const bool sum = spec.group_score == GroupScore::kTop2Sum && members.size() > 1;
    groups.push_back({-(sum ? members[0] + members[1] : members[0]), g});
  }
  std::stable_sort(groups.begin(), groups.end());
  std::vector<std::pair<double, size_t>> order;
  for (int64_t i = 0; i < spec.top_groups; ++i) {
    const size_t g = groups[static_cast<size_t>(i)].second;
    for (size_t e = g * size; e < (g + 1) * size; ++e) order.push_back({-choices[e], e});
  }
  std::sort(order.begin(), order.end());
  std::vector<double> routing;
  double sum = 0;
  for (int64_t s = 0; s < spec.top_k; ++s) {
    routing.push_back(static_cast<double>(order[static_cast<size_t>(s)].second));
  }
  for (int64_t s = 0; s < spec.top_k; ++s) {
    const double score = scores[order[static_cast<size_t>(s)].second];
    routing.push_back(spec.softmax_of_chosen ? std::exp(score) : score);
    sum += routing.back();
  }
  for (int64_t s = 0; s < spec.top_k; ++s) {
    double& weight = routing[static_cast<size_t>(spec.top_k + s)];
    if (spec.normalise || spec.softmax_of_chosen) weight /= sum;
    weight *= double{spec.scale};
  }
  return routing;
}

const RouterSpec kRouters[] = {
    {.n_experts = 12, .top_k = 4},
    {.n_experts = 12, .top_k = 4, .normalise = true},
    {.n_experts = 12, .top_k = 12, .normalise = true, .scale = 2.5f},
    {.n_experts = 12, .top_k = 3, .softmax_of_chosen = true},
    {.n_experts = 12, .top_k = 1, .score = RouterScore::kSigmoid},
    {.n_experts = 12, .top_k = 4, .score = RouterScore::kSigmoid, .normalise = true, .scale = 3},
    {.n_experts = 12, .top_k = 4, .scale = 16, .n_groups = 4, .top_groups = 2},
    {.n_experts = 12,
     .top_k = 5,
     .score = RouterScore::kSigmoid,
     .normalise = true,
     .n_groups = 3,
     .top_groups = 2,
     .group_score = GroupScore::kTop2Sum},
    {.n_experts = 1, .top_k = 1, .score = RouterScore::kSigmoid},
};

TEST_P(ExpertsTest, RouteAgreesWithSortingInDoubles) {
  const int64_t rows = 50;
  for (const RouterSpec& spec : kRouters) {
    for (const bool biased : {false, true}) {
      const std::vector<float> logits = RandomFloats(rows * spec.n_experts, 5);
      const std::vector<float> bias =
          biased ? RandomFloats(spec.n_experts, 6) : std::vector<float>();
      TestMatrix routing(DType::kF32, rows, 2 * spec.top_k);
      TestOps ops(table(), 2);

      Route(ops, logits.data(), spec.n_experts, biased ? bias.data() : nullptr, spec,
            routing.matrix());

      for (int64_t row = 0; row < rows; ++row) {
        const auto first = logits.begin() + row * spec.n_experts;
        const std::vector<double> wanted = PlainRoute({first, first + spec.n_experts}, bias, spec);
        for (int64_t i = 0; i < 2 * spec.top_k; ++i) {
          ASSERT_NEAR(routing.At(row, i), wanted[static_cast<size_t>(i)],
                      i < spec.top_k ? 0 : 1e-6 * double{spec.scale})
              << "row " << row << " column " << i << " top_k " << spec.top_k << " biased "
              << biased;
        }
      }
    }
  }
}

TEST_P(ExpertsTest, EqualLogitsChooseTheLowestIds) {
  for (const RouterSpec& spec : kRouters) {
    const std::vector<float> logits(static_cast<size_t>(spec.n_experts), 0.25f);
    TestMatrix routing(DType::kF32, 1, 2 * spec.top_k);
    TestOps ops(table());
    Route(ops, logits.data(), spec.n_experts, nullptr, spec, routing.matrix());
    for (int64_t slot = 0; slot < spec.top_k; ++slot) {
      EXPECT_EQ(routing.At(0, slot), static_cast<float>(slot));
    }
  }
}

TEST_P(ExpertsTest, HostileLogitsStillNameDifferentExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  std::mt19937 rng(11);
  const float values[] = {nan, inf, -inf, 0.0f, 3e38f, -3e38f, 1e-40f, 1.0f};
  for (const RouterSpec& spec : kRouters) {
    for (int trial = 0; trial < 60; ++trial) {
      std::vector<float> logits;
      for (int64_t e = 0; e < spec.n_experts; ++e) {
        logits.push_back(trial == 0 ? nan : values[rng() % std::size(values)]);
      }
      TestMatrix routing(DType::kF32, 1, 2 * spec.top_k);
      TestOps ops(table());
      Route(ops, logits.data(), spec.n_experts, trial % 2 ? logits.data() : nullptr, spec,
            routing.matrix());
      std::vector<float> ids;
      for (int64_t slot = 0; slot < spec.top_k; ++slot) ids.push_back(routing.At(0, slot));
      std::sort(ids.begin(), ids.end());
      EXPECT_TRUE(std::adjacent_find(ids.begin(), ids.end()) == ids.end());
      EXPECT_GE(ids.front(), 0.0f);
      EXPECT_LT(ids.back(), static_cast<float>(spec.n_experts));
    }
  }
}

TEST(Experts, ANumberIsChosenBeforeNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {nan, -5.0f, nan, -6.0f};
  const RouterSpec spec{.n_experts = 4, .top_k = 3, .softmax_of_chosen = true};
  TestMatrix routing(DType::kF32, 1, 6);
  TestOps ops(*RunnableKernelTables().front());
  Route(ops, logits.data(), 4, nullptr, spec, routing.matrix());
  EXPECT_EQ(routing.At(0, 0), 1.0f);
  EXPECT_EQ(routing.At(0, 1), 3.0f);
  EXPECT_EQ(routing.At(0, 2), 0.0f);
}

TEST(Experts, RoutersThatCannotChooseAreRefusedByField) {
  const auto message = [](const RouterSpec& spec) {
    try {
      CheckRouter(spec);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message({.n_experts = 8, .top_k = 2}), "accepted");
  EXPECT_NE(message({.n_experts = 0, .top_k = 1}).find("n_experts is 0"), std::string::npos);
  EXPECT_NE(message({.n_experts = 8, .top_k = 9}).find("top_k is 9"), std::string::npos);
  EXPECT_NE(message({.n_experts = 8, .top_k = 0}).find("top_k is 0"), std::string::npos);
  EXPECT_NE(message({.n_experts = 8, .top_k = 2, .n_groups = 3}).find("n_groups is 3"),
            std::string::npos);
  EXPECT_NE(
      message({.n_experts = 8, .top_k = 2, .n_groups = 4, .top_groups = 5}).find("top_groups is 5"),
      std::string::npos);
  EXPECT_NE(message({.n_experts = 8, .top_k = 3, .n_groups = 4, .top_groups = 1})
                .find("1 groups have 2 experts"),
            std::string::npos);
}

TEST(Experts, SlotsAreGroupedByExpertInAscendingOrder) {
  const int64_t rows = 30, top_k = 3, n_experts = 8;
  const TestMatrix routing(DType::kF32, rows, 2 * top_k, RandomRouting(rows, top_k, n_experts, 2));
  std::vector<int32_t> first(n_experts + 1), slots(rows * top_k);

  GroupByExpert(routing, n_experts, first, slots);

  EXPECT_EQ(first.front(), 0);
  EXPECT_EQ(first.back(), rows * top_k);
  for (int64_t e = 0; e < n_experts; ++e) {
    for (int32_t i = first[static_cast<size_t>(e)]; i < first[static_cast<size_t>(e) + 1]; ++i) {
      const int32_t slot = slots[static_cast<size_t>(i)];
      EXPECT_EQ(routing.At(slot / top_k, slot % top_k), static_cast<float>(e));
      if (i > first[static_cast<size_t>(e)]) {
        EXPECT_LT(slots[static_cast<size_t>(i) - 1], slot);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::engine
