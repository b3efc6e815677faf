#include "training/optim/optimizer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/kernels/kernels.h"

namespace tandem::training {
namespace {

TEST(SplitMaster, JoinsToTheSameFloatAndKeepsTheNearestBf16) {
  std::mt19937 rng(1);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(rng()));
    if (!std::isfinite(value) || std::abs(value) > 3e38f) continue;
    engine::Bf16 high;
    int16_t low;
    SplitMaster(value, &high, &low);

    ASSERT_EQ(std::bit_cast<uint32_t>(JoinMaster(high, low)), std::bit_cast<uint32_t>(value));
    const double distance = std::abs(static_cast<double>(engine::Bf16ToFloat(high)) - value);
    const double nearest =
        std::abs(static_cast<double>(engine::Bf16ToFloat(engine::FloatToBf16(value))) - value);
    ASSERT_EQ(distance, nearest) << value;
  }
}

// Ten steps of one parameter against the formulas in f64.
TEST(Adam, FollowsTheFormulas) {
  for (const bool decays : {true, false}) {
    for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
      ThreadPool pool(2);
      engine::OpsContext ops(*table, pool);
      constexpr int64_t kCount = 21;
      std::mt19937 rng(2);
      std::normal_distribution<float> normal;
      std::vector<float> p(kCount), m(kCount), v(kCount), g(kCount);
      for (float& x : p) x = normal(rng);
      std::vector<double> want(p.begin(), p.end()), want_m(kCount), want_v(kCount);
      const OptimizerSpec spec;
      for (int t = 0; t < 10; ++t) {
        for (float& x : g) x = normal(rng);
        const ParameterState state{.elements = kCount,
                                   .decays = decays,
                                   .master = p.data(),
                                   .m = m.data(),
                                   .v = v.data(),
                                   .gradient = g.data()};
        ApplyOptimizer(ops, spec, 1e-2, t, 0.5, {&state, 1});
        for (int64_t i = 0; i < kCount; ++i) {
          const double gradient = 0.5 * g[i];
          want_m[i] = 0.9 * want_m[i] + 0.1 * gradient;
          want_v[i] = 0.95 * want_v[i] + 0.05 * gradient * gradient;
          const double m_hat = want_m[i] / (1 - std::pow(0.9, t + 1));
          const double v_hat = want_v[i] / (1 - std::pow(0.95, t + 1));
          const double decay = decays ? 0.1 * want[i] : 0;
          want[i] -= 1e-2 * (m_hat / (std::sqrt(v_hat) + 1e-8) + decay);
        }
      }
      for (int64_t i = 0; i < kCount; ++i) EXPECT_NEAR(p[i], want[i], 1e-5);
    }
  }
}

TEST(Adam, SplitMasterTakesTheSameStepsAsAWholeOne) {
  for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
    ThreadPool pool(1);
    engine::OpsContext ops(*table, pool);
    constexpr int64_t kCount = 50;
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    std::vector<float> p(kCount), m(kCount), v(kCount), m2(kCount), v2(kCount), g(kCount);
    std::vector<engine::Bf16> high(kCount);
    std::vector<int16_t> low(kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      p[i] = normal(rng);
      SplitMaster(p[i], &high[i], &low[i]);
    }
    for (int t = 0; t < 20; ++t) {
      for (float& x : g) x = normal(rng);
      const ParameterState whole{.elements = kCount,
                                 .master = p.data(),
                                 .m = m.data(),
                                 .v = v.data(),
                                 .gradient = g.data()};
      const ParameterState split{.elements = kCount,
                                 .high = high.data(),
                                 .low = low.data(),
                                 .m = m2.data(),
                                 .v = v2.data(),
                                 .gradient = g.data()};
      ApplyOptimizer(ops, {}, 1e-3, t, 1, {&whole, 1});
      ApplyOptimizer(ops, {}, 1e-3, t, 1, {&split, 1});
    }
    for (int64_t i = 0; i < kCount; ++i) EXPECT_EQ(JoinMaster(high[i], low[i]), p[i]);
  }
}

TEST(GlobalNorm, IsTheNormAndThreadCountChangesNoBit) {
  std::mt19937 rng(4);
  std::normal_distribution<float> normal;
  std::vector<float> a(10007), b(333);
  double square = 0;
  for (auto* tensor : {&a, &b}) {
    for (float& x : *tensor) {
      x = normal(rng);
      square += static_cast<double>(x) * x;
    }
  }
  const ParameterState states[] = {
      {.elements = static_cast<int64_t>(a.size()), .gradient = a.data()},
      {.elements = static_cast<int64_t>(b.size()), .gradient = b.data()}};
  double first = 0;
  for (int threads = 1; threads <= 3; ++threads) {
    ThreadPool pool(threads);
    engine::OpsContext ops(*engine::RunnableKernelTables().back(), pool);
    const double norm = GlobalNorm(ops, states);
    EXPECT_NEAR(norm, std::sqrt(square), 1e-6);
    if (threads == 1) first = norm;
    EXPECT_EQ(norm, first);
  }
}

}  // namespace
}  // namespace tandem::training
