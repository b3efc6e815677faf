#include "training/ops/norm.h"

#include "tests/training/ops/gradient_check.h"

namespace tandem::training {
namespace {

constexpr int64_t kNormRows = 5;
constexpr int64_t kCols = 37;  // two whole lanes of 16 and a tail
constexpr double kEps = 1e-5;

struct NormCase {
  Floats x = RandomFloats(kNormRows * kCols, 1);
  Floats gamma = RandomFloats(kCols, 2);
  Floats beta = RandomFloats(kCols, 3);
  Floats dy = RandomFloats(kNormRows * kCols, 4);
};

// sum(dy * norm(x)) in f64.
double Loss(const NormCase& c, bool centered, const Doubles& x, const Doubles& gamma,
            const Doubles& beta) {
  double loss = 0;
  for (int64_t r = 0; r < kNormRows; ++r) {
    double mean = 0;
    double square = 0;
    for (int64_t i = 0; i < kCols; ++i) mean += x[r * kCols + i] / kCols;
    if (!centered) mean = 0;
    for (int64_t i = 0; i < kCols; ++i) {
      square += std::pow(x[r * kCols + i] - mean, 2) / kCols;
    }
    for (int64_t i = 0; i < kCols; ++i) {
      const double normed = (x[r * kCols + i] - mean) / std::sqrt(square + kEps);
      loss += c.dy[r * kCols + i] * (normed * gamma[i] + (centered ? beta[i] : 0));
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
    Floats y(kNormRows * kCols);
    Floats rstd(kNormRows);
    engine::RmsNorm(ops, c.x.data(), kCols, c.gamma.data(), kEps,
                    {y.data(), engine::DType::kF32, kNormRows, kCols, kCols}, rstd.data());
    Floats dx(kNormRows * kCols);
    Floats dgamma(kCols);
    RmsNormBackward(ops, c.x.data(), c.gamma.data(), rstd.data(), c.dy.data(), kNormRows, kCols,
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
    Floats y(kNormRows * kCols);
    Floats stats(2 * kNormRows);
    engine::LayerNorm(ops, c.x.data(), kCols, c.gamma.data(), c.beta.data(), kEps,
                      {y.data(), engine::DType::kF32, kNormRows, kCols, kCols}, stats.data());
    Floats dx(kNormRows * kCols);
    Floats dgamma(kCols);
    Floats dbeta(kCols);
    LayerNormBackward(ops, c.x.data(), c.gamma.data(), stats.data(), c.dy.data(), kNormRows, kCols,
                      dx.data(), dgamma.data(), dbeta.data());

    EXPECT_LT(RelativeError(dx, want_dx), 1e-5);
    EXPECT_LT(RelativeError(dgamma, want_dgamma), 1e-5);
    EXPECT_LT(RelativeError(dbeta, want_dbeta), 1e-5);
  });
}

TEST(NormBackward, ThreadCountChangesNoBit) {
  constexpr int64_t kManyRows = 1000;
  const Floats x = RandomFloats(kManyRows * kCols, 5);
  const Floats gamma = RandomFloats(kCols, 6);
  const Floats dy = RandomFloats(kManyRows * kCols, 7);
  const Floats rstd(kManyRows, 0.7f);
  Floats sums[3];
  for (int threads = 1; threads <= 3; ++threads) {
    ThreadPool pool(threads);
    engine::OpsContext ops(*engine::RunnableKernelTables().back(), pool);
    Floats dx(kManyRows * kCols);
    sums[threads - 1].assign(kCols, 0);
    RmsNormBackward(ops, x.data(), gamma.data(), rstd.data(), dy.data(), kManyRows, kCols,
                    dx.data(), sums[threads - 1].data());
  }

  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(sums[0], sums[2]);
}

}  // namespace
}  // namespace tandem::training
