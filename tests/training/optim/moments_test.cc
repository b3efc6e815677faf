// SGD and 8-bit moments.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "engine/kernels/kernels.h"
#include "engine/kernels/training_kernels.h"
#include "training/optim/optimizer.h"

namespace tandem::training {
namespace {

constexpr int64_t kBlock = engine::kMomentBlock;

std::vector<float> Normals(int64_t n, uint32_t seed, float scale = 1) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values) x = scale * normal(rng);
  return values;
}

// One tensor with all state that an optimiser may keep.
struct Tensor {
  Tensor(int64_t n, const OptimizerSpec& spec, bool split)
      : layout(MomentsOf(spec, {.rows = n, .is_matrix = true})), p(Normals(n, 1)), g(p.size()) {
    const auto count = static_cast<size_t>(n);
    high.resize(count);
    low.resize(count);
    for (size_t i = 0; i < count; ++i) SplitMaster(p[i], &high[i], &low[i]);
    state.elements = n;
    state.gradient = g.data();
    if (split) {
      state.high = high.data();
      state.low = low.data();
    } else {
      state.master = p.data();
    }
    const auto scales = static_cast<size_t>(MomentBlocks(n));
    if (layout.first) Take(count, scales, &m, &m_codes, &m_scales);
    if (layout.second) Take(count, scales, &v, &v_codes, &v_scales);
    if (!m.empty()) state.m = m.data();
    if (!v.empty()) state.v = v.data();
    if (!m_codes.empty()) {
      state.m_codes = m_codes.data();
      state.m_scales = m_scales.data();
    }
    if (!v_codes.empty()) {
      state.v_codes = v_codes.data();
      state.v_scales = v_scales.data();
    }
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  void Take(size_t n, size_t n_scales, std::vector<float>* floats, std::vector<uint8_t>* codes,
            std::vector<float>* scales) const {
    if (layout.coded) {
      codes->resize(n);
      scales->resize(n_scales);
    } else {
      floats->resize(n);
    }
  }

  std::vector<float> Masters() const {
    if (state.master != nullptr) return p;
    std::vector<float> values(p.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = JoinMaster(high[i], low[i]);
    return values;
  }

  MomentLayout layout;
  std::vector<float> p, g, m, v;
  std::vector<engine::Bf16> high;
  std::vector<int16_t> low;
  std::vector<uint8_t> m_codes, v_codes;
  std::vector<float> m_scales, v_scales;
  ParameterState state;
};

void TakeSteps(Tensor& tensor, const OptimizerSpec& spec, int n_steps, int threads,
               const engine::KernelTable& table) {
  ThreadPool pool(threads);
  engine::OpsContext ops(table, pool);
  for (int t = 0; t < n_steps; ++t) {
    const auto g = Normals(tensor.state.elements, static_cast<uint32_t>(100 + t), 1e-2f);
    std::copy(g.begin(), g.end(), tensor.g.begin());
    ApplyOptimizer(ops, spec, 1e-3, t, 0.5, {&tensor.state, 1});
  }
}

TEST(Sgd, FollowsTheFormulas) {
  for (const double momentum : {0.0, 0.9}) {
    for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
      const OptimizerSpec spec{.kind = OptimizerKind::kSgd, .momentum = momentum};
      Tensor tensor(37, spec, false);
      EXPECT_EQ(tensor.layout.first, momentum > 0);
      EXPECT_FALSE(tensor.layout.second);
      std::vector<double> want(tensor.p.begin(), tensor.p.end()), velocity(want.size());
      ThreadPool pool(1);
      engine::OpsContext ops(*table, pool);
      for (int t = 0; t < 10; ++t) {
        const auto g = Normals(37, static_cast<uint32_t>(t));
        std::copy(g.begin(), g.end(), tensor.g.begin());
        ApplyOptimizer(ops, spec, 1e-2, t, 0.5, {&tensor.state, 1});
        for (size_t i = 0; i < want.size(); ++i) {
          velocity[i] = momentum * velocity[i] + 0.5 * g[i];
          want[i] -= 1e-2 * velocity[i];
        }
      }
      for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(tensor.p[i], want[i], 1e-6);
    }
  }
}

// Results do not depend on the instruction set, the threads or the split of tensors into tasks.
TEST(Optimizers, TablesAndThreadsChangeNoBit) {
  constexpr int64_t kCount = 3 * 65536 + 777;
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    for (const MomentState state : {MomentState::kF32, MomentState::k8Bit}) {
      for (const bool split : {false, true}) {
        const OptimizerSpec spec{.kind = kind, .state = state, .momentum = 0.9};
        Tensor first(kCount, spec, split);
        TakeSteps(first, spec, 3, 1, *engine::RunnableKernelTables().front());
        for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
          for (const int threads : {1, 3}) {
            Tensor other(kCount, spec, split);
            TakeSteps(other, spec, 3, threads, *table);
            const std::vector<float> a = first.Masters();
            const std::vector<float> b = other.Masters();
            EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << table->key;
            EXPECT_EQ(other.m_codes, first.m_codes) << table->key;
            EXPECT_EQ(other.v_codes, first.v_codes) << table->key;
            EXPECT_EQ(other.m_scales, first.m_scales) << table->key;
            EXPECT_EQ(other.v_scales, first.v_scales) << table->key;
            EXPECT_EQ(other.m, first.m) << table->key;
            EXPECT_EQ(other.v, first.v) << table->key;
          }
        }
      }
    }
  }
}

// A code is the fourth root of the share of the scale, rounded to 1 / n. Codes c and c + 1 meet at
// ((c + 1/2) / n)^4; the larger distance to it is the bound.
double Bound(double share, double n) {
  const double c = std::floor(std::pow(share, 0.25) * n);
  const auto size = [&](double code) { return std::pow(code / n, 4); };
  return std::max(size(c + 0.5) - size(c), size(c + 1) - size(c + 0.5)) * 1.001 + 1e-6 * share;
}

TEST(EightBitMoments, OfTheFirstTheErrorIsHalfAStep) {
  for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
    const auto& kernels = engine::TrainingKernels(*table);
    constexpr int64_t kCount = 20 * kBlock + 13;
    std::vector<float> x = Normals(kCount, 7);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= std::pow(10.0f, -static_cast<float>(i % 7));
    std::vector<uint8_t> codes(x.size());
    std::vector<float> scales(static_cast<size_t>(MomentBlocks(kCount)));
    std::vector<float> back(x.size());
    kernels.code_moment(x.data(), kCount, false, codes.data(), scales.data());
    kernels.decode_moment(codes.data(), scales.data(), kCount, false, back.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double scale = scales[i / kBlock];
      const double size = std::abs(x[i]) / scale;
      ASSERT_LE(size, 1);
      EXPECT_LE(std::abs(back[i] - x[i]), scale * Bound(size, 127)) << x[i];
      EXPECT_FALSE(back[i] * x[i] < 0);
      // Values above a tenth of the largest, which dominate a step, are within 3 %.
      if (size > 0.1) {
        EXPECT_NEAR(back[i] / x[i], 1, 0.03);
      }
      if (size == 1) {
        EXPECT_FLOAT_EQ(back[i], x[i]);
      }
    }
  }
}

TEST(EightBitMoments, OfTheSecondTheRootIsNearAndNeverVanishes) {
  for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
    const auto& kernels = engine::TrainingKernels(*table);
    constexpr int64_t kCount = 20 * kBlock;
    std::vector<float> x = Normals(kCount, 8);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] *= x[i] * std::pow(10.0f, -2 * static_cast<float>(i % 13));
    }
    x[5] = 0;
    std::vector<uint8_t> codes(x.size());
    std::vector<float> scales(static_cast<size_t>(MomentBlocks(kCount)));
    std::vector<float> back(x.size());
    kernels.code_moment(x.data(), kCount, true, codes.data(), scales.data());
    kernels.decode_moment(codes.data(), scales.data(), kCount, true, back.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double scale = scales[i / kBlock];
      const double size = std::sqrt(static_cast<double>(x[i])) / scale;
      EXPECT_EQ(back[i] == 0, x[i] == 0) << x[i];
      EXPECT_LE(std::abs(std::sqrt(static_cast<double>(back[i])) - size * scale),
                scale * (Bound(size, 255) + std::pow(1.0 / 255, 4)))
          << x[i];
      if (size > 0.1) {
        EXPECT_NEAR(back[i] / x[i], 1, 0.03);
      }
    }
  }
}

TEST(EightBitMoments, BlocksOfNothingAndOfInfinityStayNumbers) {
  for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
    const auto& kernels = engine::TrainingKernels(*table);
    for (const float value : {0.0f, 1e-42f, 3e38f, INFINITY}) {
      const std::vector<float> x(kBlock, value);
      std::vector<uint8_t> codes(x.size());
      float scale = 0;
      std::vector<float> back(x.size());
      kernels.code_moment(x.data(), kBlock, true, codes.data(), &scale);
      kernels.decode_moment(codes.data(), &scale, kBlock, true, back.data());
      for (const float b : back) EXPECT_TRUE(std::isfinite(b)) << value;
    }
  }
}

TEST(EightBitMoments, AreOfLargeMatricesAlone) {
  const OptimizerSpec spec{.state = MomentState::k8Bit};

  EXPECT_TRUE(MomentsOf(spec, {.rows = 4096, .is_matrix = true}).coded);
  EXPECT_FALSE(MomentsOf(spec, {.rows = 4095, .is_matrix = true}).coded);
  EXPECT_FALSE(MomentsOf(spec, {.rows = 4096, .is_matrix = false}).coded);
  EXPECT_FALSE(MomentsOf({}, {.rows = 4096, .is_matrix = true}).coded);
  EXPECT_EQ(MomentBytes(MomentsOf(spec, {.rows = 4096, .is_matrix = true}), 4096),
            2 * (4096 + 16 * 4));
  EXPECT_EQ(MomentBytes(MomentsOf({}, {.rows = 4096, .is_matrix = true}), 4096), 8 * 4096);
  EXPECT_EQ(MomentBytes(MomentsOf({.kind = OptimizerKind::kSgd}, {.rows = 4096, .is_matrix = true}),
                        4096),
            0);
}

// A quadratic bowl with curvatures over four decades: both reach its bottom.
TEST(EightBitMoments, StepsAreNearThoseOfFloats) {
  constexpr int64_t kCount = 8192;
  double losses[2];
  int which = 0;
  for (const MomentState state : {MomentState::kF32, MomentState::k8Bit}) {
    const OptimizerSpec spec{.state = state, .weight_decay = 0};
    Tensor tensor(kCount, spec, false);
    ThreadPool pool(1);
    engine::OpsContext ops(*engine::RunnableKernelTables().back(), pool);
    const auto curvature = [](size_t i) { return std::pow(10.0f, -static_cast<float>(i % 5)); };
    for (int t = 0; t < 300; ++t) {
      for (size_t i = 0; i < tensor.p.size(); ++i) tensor.g[i] = curvature(i) * tensor.p[i];
      ApplyOptimizer(ops, spec, 1e-3, t, 1, {&tensor.state, 1});
    }
    double loss = 0;
    for (size_t i = 0; i < tensor.p.size(); ++i) {
      loss += 0.5 * curvature(i) * tensor.p[i] * tensor.p[i];
    }
    losses[which++] = loss;
  }
  EXPECT_NEAR(losses[1] / losses[0], 1, 0.02);
}

}  // namespace
}  // namespace tandem::training
