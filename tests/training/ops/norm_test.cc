#include "training/ops/norm.h"

#include "tests/training/ops/gradient_check.h"

namespace tandem::training {
namespace {

constexpr int64_t kNormRows = 5;
constexpr int64_t kNormCols = 37;  // two whole lanes of 16 and a tail
constexpr double kEps = 1e-5;

struct NormCase {
  Floats x = RandomFloats(kNormRows * kNormCols, 1);
  Floats gamma = RandomFloats(kNormCols, 2);
  Floats beta = RandomFloats(kNormCols, 3);
  Floats dy = RandomFloats(kNormRows * kNormCols, 4);
};

// sum(dy * norm(x)) in f64.
double Loss(const NormCase& c, bool centered, const Doubles& x, const Doubles& gamma,
            const Doubles& beta) {
  double loss = 0;
  for (int64_t r = 0; r < kNormRows; ++r) {
    double mean = 0;
    double square = 0;
    for (int64_t i = 0; i < kNormCols; ++i) mean += x[r * kNormCols + i] / kNormCols;
    if (!centered) mean = 0;
    for (int64_t i = 0; i < kNormCols; ++i) {
      square += std::pow(x[r * kNormCols + i] - mean, 2) / kNormCols;
    }
    for (int64_t i = 0; i < kNormCols; ++i) {
      const double normed = (x[r * kNormCols + i] - mean) / std::sqrt(square + kEps);
      loss += c.dy[r * kNormCols + i] * (normed * gamma[i] + (centered ? beta[i] : 0));
    }
  }
  return loss;
}

TEST(NormBackward, RmsNormAgreesWithFiniteDifferences) {
  const NormCase c;
  const Doubles x = Widen(c.x);
  const Doubles gamma = Widen(c.gamma);
  const Doubles want_dx =
      NumericGradient([&](const Doubles& at) { return Loss(c, false, at, gamma, {}); }, x);
  const Doubles want_dgamma =
      NumericGradient([&](const Doubles& at) { return Loss(c, false, x, at, {}); }, gamma);

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats y(kNormRows * kNormCols);
    Floats rstd(kNormRows);
    engine::RmsNorm(ops, c.x.data(), kNormCols, c.gamma.data(), kEps,
                    {y.data(), engine::DType::kF32, kNormRows, kNormCols, kNormCols}, rstd.data());
    Floats dx(kNormRows * kNormCols);
    Floats dgamma(kNormCols);
    RmsNormBackward(ops, c.x.data(), c.gamma.data(), rstd.data(), c.dy.data(), kNormRows, kNormCols,
                    dx.data(), dgamma.data());

    EXPECT_LT(RelativeError(dx, want_dx), 1e-5);
    EXPECT_LT(RelativeError(dgamma, want_dgamma), 1e-5);
  });
}

TEST(NormBackward, LayerNormAgreesWithFiniteDifferences) {
  const NormCase c;
  const Doubles x = Widen(c.x);
  const Doubles gamma = Widen(c.gamma);
  const Doubles beta = Widen(c.beta);
  const Doubles want_dx =
      NumericGradient([&](const Doubles& at) { return Loss(c, true, at, gamma, beta); }, x);
  const Doubles want_dgamma =
      NumericGradient([&](const Doubles& at) { return Loss(c, true, x, at, beta); }, gamma);
  const Doubles want_dbeta =
      NumericGradient([&](const Doubles& at) { return Loss(c, true, x, gamma, at); }, beta);

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats y(kNormRows * kNormCols);
    Floats stats(2 * kNormRows);
    engine::LayerNorm(ops, c.x.data(), kNormCols, c.gamma.data(), c.beta.data(), kEps,
                      {y.data(), engine::DType::kF32, kNormRows, kNormCols, kNormCols},
                      stats.data());
    Floats dx(kNormRows * kNormCols);
    Floats dgamma(kNormCols);
    Floats dbeta(kNormCols);
    LayerNormBackward(ops, c.x.data(), c.gamma.data(), stats.data(), c.dy.data(), kNormRows,
                      kNormCols, dx.data(), dgamma.data(), dbeta.data());

    EXPECT_LT(RelativeError(dx, want_dx), 1e-5);
    EXPECT_LT(RelativeError(dgamma, want_dgamma), 1e-5);
    EXPECT_LT(RelativeError(dbeta, want_dbeta), 1e-5);
  });
}

// Without gamma or beta the same gradients as with ones and zeros.
TEST(NormBackward, LayerNormWithoutScaleOrBiasAgreesWithFiniteDifferences) {
  const NormCase c;
  const Doubles x = Widen(c.x);
  const Doubles gamma = Widen(c.gamma);
  const Doubles ones(kNormCols, 1), zeros(kNormCols, 0);
  const Doubles want_bare =
      NumericGradient([&](const Doubles& at) { return Loss(c, true, at, ones, zeros); }, x);
  const Doubles want_dx =
      NumericGradient([&](const Doubles& at) { return Loss(c, true, at, gamma, zeros); }, x);
  const Doubles want_dgamma =
      NumericGradient([&](const Doubles& at) { return Loss(c, true, x, at, zeros); }, gamma);

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats y(kNormRows * kNormCols);
    Floats stats(2 * kNormRows);
    engine::LayerNorm(ops, c.x.data(), kNormCols, nullptr, nullptr, kEps,
                      {y.data(), engine::DType::kF32, kNormRows, kNormCols, kNormCols},
                      stats.data());
    Floats bare(y.size()), dx(y.size()), dgamma(kNormCols);
    LayerNormBackward(ops, c.x.data(), nullptr, stats.data(), c.dy.data(), kNormRows, kNormCols,
                      bare.data(), nullptr, nullptr);
    LayerNormBackward(ops, c.x.data(), c.gamma.data(), stats.data(), c.dy.data(), kNormRows,
                      kNormCols, dx.data(), dgamma.data(), nullptr);

    EXPECT_LT(RelativeError(bare, want_bare), 1e-5);
    EXPECT_LT(RelativeError(dx, want_dx), 1e-5);
    EXPECT_LT(RelativeError(dgamma, want_dgamma), 1e-5);
  });
}

TEST(NormBackward, ThreadCountChangesNoBit) {
  constexpr int64_t kManyRows = 1000;
  const Floats x = RandomFloats(kManyRows * kNormCols, 5);
  const Floats gamma = RandomFloats(kNormCols, 6);
  const Floats dy = RandomFloats(kManyRows * kNormCols, 7);
  const Floats rstd(kManyRows, 0.7f);
  Floats sums[3];
  for (int threads = 1; threads <= 3; ++threads) {
    ThreadPool pool(threads);
    engine::OpsContext ops(*engine::RunnableKernelTables().back(), pool);
    Floats dx(kManyRows * kNormCols);
    sums[threads - 1].assign(kNormCols, 0);
    RmsNormBackward(ops, x.data(), gamma.data(), rstd.data(), dy.data(), kManyRows, kNormCols,
                    dx.data(), sums[threads - 1].data());
  }

  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(sums[0], sums[2]);
}

}  // namespace
}  // namespace tandem::training
