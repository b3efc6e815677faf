#include "training/ops/cross_entropy.h"

#include "engine/ops/rows.h"
#include "tests/training/ops/gradient_check.h"

namespace tandem::training {
namespace {

constexpr int64_t kTokens = 7;
constexpr int64_t kWidth = 10;
constexpr int64_t kVocab = 53;

struct HeadCase {
  Floats hidden = RandomFloats(kTokens * kWidth, 1);
  Floats head = RandomFloats(kVocab * kWidth, 2, 0.5f);
  Floats bias = RandomFloats(kVocab, 3);
  std::vector<TokenId> targets = {3, 52, -1, 0, 17, 17, 30};
  Floats weights = {1, 1, 0, 0.5f, 1, 0, 2};
  float soft_cap = 0;
  float z_loss = 0;

  double Loss(const Doubles& h, const Doubles& w, const Doubles& b) const {
    double loss = 0;
    double total = 0;
    for (int64_t r = 0; r < kTokens; ++r) {
      if (targets[r] < 0 || weights[r] == 0) continue;
      Doubles z(kVocab);
      double sum = 0;
      for (int64_t n = 0; n < kVocab; ++n) {
        z[n] = b[n];
        for (int64_t i = 0; i < kWidth; ++i) z[n] += h[r * kWidth + i] * w[n * kWidth + i];
        if (soft_cap > 0) z[n] = soft_cap * std::tanh(z[n] / soft_cap);
        sum += std::exp(z[n]);
      }
      const double lse = std::log(sum);
      loss += weights[r] * (lse - z[targets[r]] + z_loss * lse * lse);
      total += weights[r];
    }
    return loss / total;
  }
};

struct Outcome {
  CrossEntropyResult result;
  Floats dhidden = Floats(kTokens * kWidth, 99.0f);
  Floats dhead = Floats(kVocab * kWidth);
  Floats dbias = Floats(kVocab);
};

Outcome LossAndGradients(engine::OpsContext& ops, const HeadCase& c, engine::DType dtype) {
  const int64_t stride = engine::RowStride(dtype, kWidth);
  AlignedBuffer hidden(static_cast<size_t>(kTokens * stride) * engine::DTypeBytes(dtype));
  engine::RoundRows(ops, c.hidden.data(), kWidth, {hidden.data(), dtype, kTokens, kWidth, stride});
  AlignedBuffer panels(static_cast<size_t>(engine::PanelBytes(dtype, kVocab, kWidth)));
  engine::PackPanels(
      ops,
      {reinterpret_cast<const std::byte*>(c.head.data()), engine::DType::kF32, {kVocab, kWidth}},
      engine::SourceLayout::kOutIn, kVocab, kWidth, dtype, panels.data());
  Outcome outcome;
  CrossEntropyWorkspace workspace;
  outcome.result =
      CrossEntropy(ops, workspace,
                   {.hidden = {hidden.data(), dtype, kTokens, kWidth, stride},
                    .head = {panels.data(), dtype, kVocab, kWidth},
                    .bias = c.bias.data(),
                    .soft_cap = c.soft_cap,
                    .targets = c.targets,
                    .weights = c.weights,
                    .scale = 1 / 5.5f,
                    .z_loss = c.z_loss},
                   outcome.dhidden.data(), outcome.dhead.data(), outcome.dbias.data(), nullptr);
  return outcome;
}

void ExpectLossAndGradients(const HeadCase& c) {
  const Doubles h = Widen(c.hidden);
  const Doubles w = Widen(c.head);
  const Doubles b = Widen(c.bias);
  const Doubles want_dh = NumericGradient([&](const Doubles& at) { return c.Loss(at, w, b); }, h);
  const Doubles want_dw = NumericGradient([&](const Doubles& at) { return c.Loss(h, at, b); }, w);
  const Doubles want_db = NumericGradient([&](const Doubles& at) { return c.Loss(h, w, at); }, b);

  OnEveryTable([&](engine::OpsContext& ops) {
    const Outcome f32 = LossAndGradients(ops, c, engine::DType::kF32);
    EXPECT_DOUBLE_EQ(f32.result.weight, 4.5 + 1.0);
    EXPECT_NEAR((f32.result.weighted_loss + f32.result.weighted_z_loss) / 5.5, c.Loss(h, w, b),
                1e-5);
    EXPECT_LT(RelativeError(f32.dhidden, want_dh), 1e-5);
    EXPECT_LT(RelativeError(f32.dhead, want_dw), 1e-5);
    EXPECT_LT(RelativeError(f32.dbias, want_db), 1e-5);

    const Outcome bf16 = LossAndGradients(ops, c, engine::DType::kBF16);
    EXPECT_NEAR((bf16.result.weighted_loss + bf16.result.weighted_z_loss) / 5.5, c.Loss(h, w, b),
                2e-2);
    EXPECT_LT(RelativeError(bf16.dhidden, want_dh), 2e-2);
    EXPECT_LT(RelativeError(bf16.dhead, want_dw), 2e-2);
    EXPECT_LT(RelativeError(bf16.dbias, want_db), 2e-2);
  });
}

TEST(CrossEntropy, LossAndGradientsAgreeWithFiniteDifferences) { ExpectLossAndGradients({}); }

TEST(CrossEntropy, SoftCappedLogitsHaveTheGradientsOfTheirLoss) {
  HeadCase c;
  c.soft_cap = 3;  // logits reach about 10
  ExpectLossAndGradients(c);
}

TEST(CrossEntropy, AllRowsUntrainedGivesZero) {
  HeadCase c;
  c.weights.assign(kTokens, 0.0f);
  OnEveryTable([&](engine::OpsContext& ops) {
    const Outcome outcome = LossAndGradients(ops, c, engine::DType::kF32);
    EXPECT_EQ(outcome.result.weight, 0);
    EXPECT_EQ(outcome.result.weighted_loss, 0);
    EXPECT_EQ(outcome.dhidden, Floats(kTokens * kWidth, 0.0f));
  });
}

TEST(CrossEntropy, ZLossAddsItsGradient) {
  HeadCase c;
  c.z_loss = 0.3f;
  ExpectLossAndGradients(c);
  c.soft_cap = 3;
  ExpectLossAndGradients(c);
}

}  // namespace
}  // namespace tandem::training
