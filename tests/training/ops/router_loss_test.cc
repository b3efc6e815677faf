#include "training/ops/router_loss.h"

#include <array>

#include "tests/training/ops/gradient_check.h"

namespace tandem::training {
namespace {

using engine::DType;
using engine::RouterScore;
using engine::RouterSpec;

constexpr int64_t kLossRows = 7;
constexpr int64_t kLossExperts = 5;
constexpr int64_t kLossTopK = 2;

// Two routers over the same rows; row 3 is padding.
struct LossCase {
  RouterSpec spec{.n_experts = kLossExperts, .top_k = kLossTopK};
  std::array<Floats, 2> logits = {RandomFloats(kLossRows * kLossExperts, 1),
                                  RandomFloats(kLossRows* kLossExperts, 2)};
  std::array<Floats, 2> routing;
  std::vector<DropoutRow> sources = std::vector<DropoutRow>(kLossRows);

  explicit LossCase(RouterScore score) {
    spec.score = score;
    sources[3].sample = UINT64_MAX;
    ThreadPool pool(1);
    engine::OpsContext ops(engine::Kernels(), pool);
    for (size_t layer = 0; layer < 2; ++layer) {
      routing[layer].resize(kLossRows * 2 * kLossTopK);
      engine::Route(ops, logits[layer].data(), kLossExperts, nullptr, spec, Routing(layer));
    }
  }

  engine::Matrix Routing(size_t layer) const {
    return {const_cast<float*>(routing[layer].data()), DType::kF32, kLossRows, 2 * kLossTopK,
            2 * kLossTopK};
  }

  RouterTally Tally(engine::OpsContext& ops) const {
    RouterTally tally;
    for (size_t layer = 0; layer < 2; ++layer) {
      tally.Add(ops, logits[layer].data(), spec, Routing(layer), sources);
    }
    return tally;
  }

  // transformers' load_balancing_loss_func over both layers, with the mask, and the z loss; in f64
  // from the formulas. The counts of slots are constants.
  RouterFigures Figures(const std::array<Doubles, 2>& at) const {
    Doubles slots(kLossExperts), probabilities(kLossExperts);
    double rows = 0;
    RouterFigures figures;
    for (size_t layer = 0; layer < 2; ++layer) {
      for (int64_t r = 0; r < kLossRows; ++r) {
        if (r == 3) continue;
        rows += 1;
        double sum = 0, softmax_sum = 0;
        Doubles scores;
        for (int64_t e = 0; e < kLossExperts; ++e) {
          const double z = at[layer][static_cast<size_t>(r * kLossExperts + e)];
          scores.push_back(spec.score == RouterScore::kSigmoid ? 1 / (1 + std::exp(-z))
                                                               : std::exp(z));
          sum += scores.back();
          softmax_sum += std::exp(z);
        }
        for (size_t e = 0; e < scores.size(); ++e) probabilities[e] += scores[e] / sum;
        figures.z += std::pow(std::log(softmax_sum), 2);
        for (int64_t s = 0; s < kLossTopK; ++s) {
          slots[static_cast<size_t>(routing[layer][static_cast<size_t>(r * 2 * kLossTopK + s)])] +=
              1;
        }
      }
    }
    for (size_t e = 0; e < slots.size(); ++e) {
      figures.balance += kLossExperts * slots[e] / rows * probabilities[e] / rows;
    }
    figures.z /= rows;
    return figures;
  }

  std::array<Doubles, 2> Wide() const { return {Widen(logits[0]), Widen(logits[1])}; }
};

TEST(RouterLoss, FiguresAreThoseOfTheFormulasWithoutPadding) {
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    const LossCase c(score);
    const RouterFigures want = c.Figures(c.Wide());
    OnEveryTable([&](engine::OpsContext& ops) {
      const RouterFigures got = c.Tally(ops).Figures();

      EXPECT_NEAR(got.balance, want.balance, 1e-9);
      EXPECT_NEAR(got.z, want.z, 1e-9);
    });
  }
}

TEST(RouterLoss, GradientsAgreeWithFiniteDifferences) {
  constexpr double kShare = 0.25;
  const RouterLossOptions options{.balance = 0.7, .z = 0.3};
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    const LossCase c(score);
    for (size_t layer = 0; layer < 2; ++layer) {
      const Doubles want = NumericGradient(
          [&](const Doubles& at) {
            std::array<Doubles, 2> all = c.Wide();
            all[layer] = at;
            const RouterFigures figures = c.Figures(all);
            return kShare * (options.balance * figures.balance + options.z * figures.z);
          },
          Widen(c.logits[layer]));
      OnEveryTable([&](engine::OpsContext& ops) {
        Floats dlogits(kLossRows * kLossExperts);
        c.Tally(ops).Backward(ops, options, kShare, c.logits[layer].data(), c.spec, kLossRows,
                              c.sources, dlogits.data());

        EXPECT_LT(RelativeError(dlogits, want), 1e-5);
      });
    }
  }
}

TEST(RouterLoss, TheMostLoadedExpertIsThatOfTheWorstLayer) {
  ThreadPool pool(1);
  engine::OpsContext ops(engine::Kernels(), pool);
  const RouterSpec spec{.n_experts = 4, .top_k = 1};
  const Floats logits(8 * 4);
  RouterTally tally;
  const auto add = [&](const std::vector<float>& ids) {
    Floats routing;
    for (const float id : ids) routing.insert(routing.end(), {id, 1.0f});
    tally.Add(ops, logits.data(), spec, {routing.data(), DType::kF32, 8, 2, 2}, {});
  };

  add({0, 1, 2, 3, 0, 1, 2, 3});
  EXPECT_DOUBLE_EQ(tally.Figures().most_loaded, 0.25);
  EXPECT_NEAR(tally.Figures().balance, 1, 1e-12);  // even load: top_k
  add({1, 1, 1, 1, 1, 1, 2, 3});
  EXPECT_DOUBLE_EQ(tally.Figures().most_loaded, 0.75);
}

}  // namespace
}  // namespace tandem::training
