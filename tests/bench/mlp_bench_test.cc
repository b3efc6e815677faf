#include "bench/mlp_bench.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"

namespace tandem::bench {
namespace {

using engine::DType;

// The reference: one step by its formulas, in f64.
struct Naive {
  double loss = 0;
  std::vector<double> w_up;

  Naive(const MlpBenchOptions& o, const std::vector<float>& x, const std::vector<float>& up,
        const std::vector<float>& down)
      : w_up(up.begin(), up.end()) {
    const int64_t rows = o.batch * o.seq;
    const double n = static_cast<double>(rows * o.d);
    const auto w = [](const std::vector<float>& m, int64_t i) {
      return static_cast<double>(m[static_cast<size_t>(i)]);
    };
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<double> a(static_cast<size_t>(o.ff)), out(static_cast<size_t>(o.d));
      for (int64_t f = 0; f < o.ff; ++f) {
        for (int64_t i = 0; i < o.d; ++i) {
          a[static_cast<size_t>(f)] += w(x, r * o.d + i) * w(up, f * o.d + i);
        }
      }
      for (int64_t i = 0; i < o.d; ++i) {
        for (int64_t f = 0; f < o.ff; ++f) {
          out[static_cast<size_t>(i)] +=
              std::max(0.0, a[static_cast<size_t>(f)]) * w(down, i * o.ff + f);
        }
        loss += out[static_cast<size_t>(i)] * out[static_cast<size_t>(i)] / n;
      }
      for (int64_t f = 0; f < o.ff; ++f) {
        double dh = 0;
        for (int64_t i = 0; i < o.d; ++i) {
          dh += 2 / n * out[static_cast<size_t>(i)] * w(down, i * o.ff + f);
        }
        if (a[static_cast<size_t>(f)] <= 0) continue;
        for (int64_t i = 0; i < o.d; ++i) {
          w_up[static_cast<size_t>(f * o.d + i)] -= o.learning_rate * dh * w(x, r * o.d + i);
        }
      }
    }
  }
};

MlpBenchOptions Small() {
  MlpBenchOptions options;
  options.d = 24;
  options.ff = 40;
  options.seq = 70;
  options.batch = 3;
  options.chunk = 1024;
  options.dtype = DType::kF32;
  options.learning_rate = 5;
  return options;
}

struct StepOutcome {
  double loss = 0;  // of the second step, after the first update
  std::vector<float> w_up;
};

StepOutcome TwoSteps(const MlpBenchOptions& options, int threads = 2) {
  ThreadPool pool(threads);
  engine::OpsContext ops(engine::Kernels(), pool);
  MlpWorkload workload(options, ops);
  workload.Step();
  return {workload.Step(), workload.w_up()};
}

void ExpectSame(const StepOutcome& a, const StepOutcome& b) {
  EXPECT_EQ(a.loss, b.loss);
  ASSERT_EQ(a.w_up.size(), b.w_up.size());
  EXPECT_EQ(std::memcmp(a.w_up.data(), b.w_up.data(), a.w_up.size() * sizeof(float)), 0);
}

TEST(MlpWorkload, AStepIsThatOfItsFormulas) {
  ThreadPool pool(2);
  engine::OpsContext ops(engine::Kernels(), pool);
  for (const MlpSave save : {MlpSave::kPlain, MlpSave::kMask1, MlpSave::kRecompute}) {
    MlpBenchOptions options = Small();
    options.save = save;
    MlpWorkload workload(options, ops);
    const std::vector<float> before = workload.w_up();
    const Naive naive(options, workload.x(), before, workload.w_down());
    EXPECT_NEAR(workload.Step(), naive.loss, 1e-5 * naive.loss);
    const std::vector<float> after = workload.w_up();
    double moved = 0, wrong = 0;
    for (size_t i = 0; i < after.size(); ++i) {
      moved = std::max(moved, std::fabs(naive.w_up[i] - static_cast<double>(before[i])));
      wrong = std::max(wrong, std::fabs(naive.w_up[i] - static_cast<double>(after[i])));
    }
    EXPECT_GT(moved, 1e-3);
    EXPECT_LT(wrong, 1e-4 * moved);
  }
}

TEST(MlpWorkload, WhatIsKeptAndTheChunksChangeNoBit) {
  MlpBenchOptions options = Small();
  options.seq = 2500;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    options.dtype = dtype;
    options.chunk = 4096;
    options.save = MlpSave::kPlain;
    const StepOutcome plain = TwoSteps(options);
    EXPECT_GT(plain.loss, 0);
    for (const MlpSave save : {MlpSave::kPlain, MlpSave::kMask1, MlpSave::kRecompute}) {
      for (const int64_t chunk : {1024, 2048, 4096}) {
        options.save = save;
        options.chunk = chunk;
        ExpectSame(TwoSteps(options, 1 + static_cast<int>(chunk / 1024)), plain);
      }
    }
  }
}

TEST(MlpWorkload, KeepsTheBytesOfTheFormula) {
  ThreadPool pool(1);
  engine::OpsContext ops(engine::Kernels(), pool);
  MlpBenchOptions options = Small();
  const int64_t elements = options.seq * options.ff;
  options.save = MlpSave::kPlain;
  EXPECT_EQ(MlpWorkload(options, ops).kept_bytes(), elements * 4);
  options.save = MlpSave::kMask1;
  EXPECT_EQ(MlpWorkload(options, ops).kept_bytes(), (elements + 7) / 8);
  options.save = MlpSave::kRecompute;
  EXPECT_EQ(MlpWorkload(options, ops).kept_bytes(), 0);
}

TEST(MlpWorkload, AChunkThatWouldChangeSumsIsRefused) {
  ThreadPool pool(1);
  engine::OpsContext ops(engine::Kernels(), pool);
  MlpBenchOptions options = Small();
  options.chunk = 64;
  EXPECT_THROW(MlpWorkload(options, ops), Error);
}

}  // namespace
}  // namespace tandem::bench
