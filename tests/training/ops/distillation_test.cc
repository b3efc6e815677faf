// The loss of distillation within the tiles of the head.

#include "training/ops/distillation.h"

#include <algorithm>
#include <numeric>

#include "engine/ops/rows.h"
#include "tests/training/ops/gradient_check.h"
#include "training/ops/cross_entropy.h"

namespace tandem::training {
namespace {

constexpr int64_t kTaughtRows = 7;
constexpr int64_t kTaughtWidth = 10;
constexpr int64_t kTaughtWords = 53;
constexpr double kAllWeights = 5.5;

struct DistilledCase {
  double alpha = 0.5;
  double temperature = 1;
  int64_t k = 4;
  float soft_cap = 0;
  float z_loss = 0;
  Floats hidden = RandomFloats(kTaughtRows * kTaughtWidth, 1);
  Floats head = RandomFloats(kTaughtWords * kTaughtWidth, 2, 0.5f);
  std::vector<TokenId> targets = {3, 52, -1, 0, 17, 17, 30};
  Floats weights = {1, 1, 0, 0.5f, 1, 0, 2};
  std::vector<TokenId> ids;
  Floats logprobs;

  DistilledCase() = default;
  explicit DistilledCase(double a, double t = 1, int64_t n = 4) : alpha(a), temperature(t), k(n) {}

  // The first token of odd rows is the target.
  void FillTeacher() {
    for (int64_t r = 0; r < kTaughtRows; ++r) {
      std::vector<TokenId> row(kTaughtWords);
      std::iota(row.begin(), row.end(), 0);
      std::rotate(row.begin(), row.begin() + r * 5, row.end());
      if (r % 2 == 1 && targets[r] >= 0) {
        std::iter_swap(row.begin(), std::find(row.begin(), row.end(), targets[r]));
      }
      // Probabilities that leave a twentieth to the others, and nothing without any.
      double rest = k == kTaughtWords ? 1 : 0.95;
      for (int64_t i = 0; i < k; ++i) {
        const double p = i + 1 == k ? rest : rest / 2;
        rest -= p;
        ids.push_back(row[i]);
        logprobs.push_back(static_cast<float>(std::log(p)));
      }
    }
  }

  // The documented formula in f64.
  double RowLoss(const Doubles& z, int64_t row) const {
    const auto log_sum = [](const Doubles& x) {
      const double most = *std::max_element(x.begin(), x.end());
      double sum = 0;
      for (const double v : x) sum += std::exp(v - most);
      return most + std::log(sum);
    };
    const double lse = log_sum(z);
    Doubles teacher, student, others = z;
    double rest = 1;
    for (int64_t i = 0; i < k; ++i) {
      const TokenId id = ids[row * k + i];
      const auto logprob = static_cast<double>(logprobs[row * k + i]);
      rest -= std::exp(logprob);
      teacher.push_back(logprob / temperature);
      student.push_back((z[id] - lse) / temperature);
      others[id] = -1e300;
    }
    if (k < kTaughtWords) {
      teacher.push_back(std::log(rest) / temperature);
      student.push_back((log_sum(others) - lse) / temperature);
    }
    const double t = log_sum(teacher), s = log_sum(student);
    double divergence = 0;
    for (size_t i = 0; i < teacher.size(); ++i) {
      divergence += std::exp(teacher[i] - t) * (teacher[i] - t - student[i] + s);
    }
    return (1 - alpha) * (lse - z[targets[row]]) + alpha * temperature * temperature * divergence +
           z_loss * lse * lse;
  }

  double Loss(const Doubles& h, const Doubles& w) const {
    double loss = 0;
    for (int64_t r = 0; r < kTaughtRows; ++r) {
      if (targets[r] < 0 || weights[r] == 0) continue;
      Doubles z(kTaughtWords);
      for (int64_t n = 0; n < kTaughtWords; ++n) {
        for (int64_t i = 0; i < kTaughtWidth; ++i)
          z[n] += h[r * kTaughtWidth + i] * w[n * kTaughtWidth + i];
        if (soft_cap > 0) z[n] = soft_cap * std::tanh(z[n] / soft_cap);
      }
      loss += weights[r] * RowLoss(z, r);
    }
    return loss / kAllWeights;
  }
};

struct DistilledOutcome {
  CrossEntropyResult result;
  Floats dhidden = Floats(kTaughtRows * kTaughtWidth, 99.0f);
  Floats dhead = Floats(kTaughtWords * kTaughtWidth);
  Floats token_logprobs = Floats(kTaughtRows);
};

DistilledOutcome RunDistilled(engine::OpsContext& ops, const DistilledCase& c, engine::DType dtype,
                              bool distils = true, int64_t tile_rows = 0) {
  const int64_t stride = engine::RowStride(dtype, kTaughtWidth);
  AlignedBuffer hidden(static_cast<size_t>(kTaughtRows * stride) * engine::DTypeBytes(dtype));
  engine::RoundRows(ops, c.hidden.data(), kTaughtWidth,
                    {hidden.data(), dtype, kTaughtRows, kTaughtWidth, stride});
  AlignedBuffer panels(static_cast<size_t>(engine::PanelBytes(dtype, kTaughtWords, kTaughtWidth)));
  engine::PackPanels(ops,
                     {reinterpret_cast<const std::byte*>(c.head.data()),
                      engine::DType::kF32,
                      {kTaughtWords, kTaughtWidth}},
                     engine::SourceLayout::kOutIn, kTaughtWords, kTaughtWidth, dtype,
                     panels.data());
  const Distillation distillation{c.alpha, c.temperature, c.k, c.ids, c.logprobs};
  DistilledOutcome outcome;
  CrossEntropyWorkspace workspace;
  outcome.result = CrossEntropy(
      ops, workspace,
      {.hidden = {hidden.data(), dtype, kTaughtRows, kTaughtWidth, stride},
       .head = {panels.data(), dtype, kTaughtWords, kTaughtWidth},
       .soft_cap = c.soft_cap,
       .targets = c.targets,
       .weights = c.weights,
       .scale = static_cast<float>(1 / kAllWeights),
       .z_loss = c.z_loss,
       .distillation = distils ? &distillation : nullptr,
       .tile_rows = tile_rows},
      outcome.dhidden.data(), outcome.dhead.data(), nullptr, outcome.token_logprobs.data());
  return outcome;
}

void ExpectDistilledGradients(DistilledCase c) {
  c.FillTeacher();
  const Doubles h = Widen(c.hidden);
  const Doubles w = Widen(c.head);
  const Doubles want_dh = NumericGradient([&](const Doubles& at) { return c.Loss(at, w); }, h);
  const Doubles want_dw = NumericGradient([&](const Doubles& at) { return c.Loss(h, at); }, w);
  OnEveryTable([&](engine::OpsContext& ops) {
    for (const auto& [dtype, loss_error, error] : {std::tuple(engine::DType::kF32, 1e-5, 2e-5),
                                                   std::tuple(engine::DType::kBF16, 3e-2, 3e-2)}) {
      const DistilledOutcome got = RunDistilled(ops, c, dtype);
      const double loss = (1 - c.alpha) * got.result.weighted_loss +
                          c.alpha * got.result.weighted_divergence + got.result.weighted_z_loss;
      EXPECT_NEAR(loss / kAllWeights, c.Loss(h, w), loss_error);
      EXPECT_LT(RelativeError(got.dhidden, want_dh), error);
      EXPECT_LT(RelativeError(got.dhead, want_dw), error);
    }
  });
}

TEST(Distillation, GradientsAgreeWithFiniteDifferences) {
  for (const double alpha : {0.5, 1.0}) {
    for (const double temperature : {1.0, 2.5, 0.5}) {
      SCOPED_TRACE(testing::Message() << alpha << " " << temperature);
      ExpectDistilledGradients(DistilledCase(alpha, temperature));
    }
  }
}

TEST(Distillation, OneTokenOrAllTokensOfTheTeacherWork) {
  ExpectDistilledGradients(DistilledCase(0.7, 2, 1));
  ExpectDistilledGradients(DistilledCase(0.7, 2, kTaughtWords));
}

TEST(Distillation, WorksWithACapAndWithZLoss) {
  DistilledCase c(0.6, 1.5);
  c.soft_cap = 3;
  ExpectDistilledGradients(c);
  c.z_loss = 0.3f;
  ExpectDistilledGradients(c);
}

TEST(Distillation, WithAlphaZeroIsCrossEntropyBitForBit) {
  DistilledCase c(0);
  c.FillTeacher();
  OnEveryTable([&](engine::OpsContext& ops) {
    for (const engine::DType dtype : {engine::DType::kF32, engine::DType::kBF16}) {
      const DistilledOutcome plain = RunDistilled(ops, c, dtype, false);
      const DistilledOutcome distilled = RunDistilled(ops, c, dtype);
      EXPECT_EQ(distilled.dhidden, plain.dhidden);
      EXPECT_EQ(distilled.dhead, plain.dhead);
      EXPECT_EQ(distilled.token_logprobs, plain.token_logprobs);
      EXPECT_EQ(distilled.result.weighted_loss, plain.result.weighted_loss);
      EXPECT_EQ(distilled.result.correct_weight, plain.result.correct_weight);
      EXPECT_EQ(plain.result.weighted_divergence, 0);
      EXPECT_GT(distilled.result.weighted_divergence, 0);
    }
  });
}

TEST(Distillation, TheTilesSizeMovesNoBit) {
  DistilledCase c(0.5, 2);
  c.FillTeacher();
  OnEveryTable([&](engine::OpsContext& ops) {
    const DistilledOutcome whole = RunDistilled(ops, c, engine::DType::kF32);
    for (const int64_t rows : {1, 2, 5}) {
      const DistilledOutcome tiles = RunDistilled(ops, c, engine::DType::kF32, true, rows);
      EXPECT_EQ(tiles.dhidden, whole.dhidden);
      EXPECT_EQ(tiles.result.weighted_divergence, whole.result.weighted_divergence);
    }
  });
}

TEST(TemperedDivergence, OfEqualDistributionsIsZeroWithoutSlopes) {
  const Floats teacher = {std::log(0.5f), std::log(0.25f)};
  Doubles slopes(3);
  const Doubles student = {std::log(0.5), std::log(0.25), std::log(0.25)};
  EXPECT_NEAR(TemperedDivergence(teacher, student, 3, slopes), 0, 1e-7);
  for (const double slope : slopes) EXPECT_NEAR(slope, 0, 1e-6);
}

// A certain teacher leaves less than nothing by rounding; a student may be as certain of another.
TEST(TemperedDivergence, StaysFiniteAtTheEnds) {
  for (const float logprob : {0.0f, 1e-7f, -1e-9f}) {
    const Floats teacher = {logprob, -9999};
    Doubles slopes(3);
    const Doubles student = {-80, -1e-9, -90};
    EXPECT_NEAR(TemperedDivergence(teacher, student, 1, slopes), 80, 1e-3);
    EXPECT_NEAR(slopes[0], -1, 1e-6);
    EXPECT_NEAR(slopes[1], 1, 1e-6);
    EXPECT_NEAR(slopes[2], 0, 1e-6);
  }
}

}  // namespace
}  // namespace tandem::training
