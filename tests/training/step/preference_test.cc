// The arithmetic of direct preference optimisation: its formulas, and gradients of whole models.

#include "training/step/preference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/formats/model_dir.h"
#include "engine/io/json.h"
#include "engine/kernels/kernels.h"
#include "tests/support/golden.h"
#include "training/step/trainer.h"

namespace tandem::training {
namespace {

TEST(PairLoss, IsLogTwoWhereNothingWasLearned) {
  for (const double smoothing : {0.0, 0.2}) {
    const DpoOptions options{.beta = 0.3, .label_smoothing = smoothing};
    EXPECT_DOUBLE_EQ(PairLoss(options, {-3, -5}, {-3, -5}), std::log(2.0));
  }
}

// By hand: beta d = 0.5 * ((-1 - -4) - (-2 - -3)) = 1; softplus(-1), softplus(1).
TEST(PairLoss, HasTheValuesOfTheFormula) {
  const PairLogProbs policy{-1, -4};
  const PairLogProbs reference{-2, -3};

  EXPECT_NEAR(PairLoss({.beta = 0.5}, policy, reference), 0.3132616875182228, 1e-15);
  EXPECT_NEAR(PairLoss({.beta = 0.5, .label_smoothing = 0.1}, policy, reference),
              0.9 * 0.3132616875182228 + 0.1 * 1.3132616875182228, 1e-15);
  EXPECT_NEAR(PairLossSlopes({.beta = 0.5}, policy, reference).chosen, 0.5 * 0.2689414213699951,
              1e-15);
}

TEST(PairLoss, NeitherOverflowsNorVanishes) {
  const DpoOptions options{.beta = 1};
  EXPECT_EQ(PairLoss(options, {-5000, 0}, {0, 0}), 5000);
  EXPECT_EQ(PairLossSlopes(options, {-5000, 0}, {0, 0}).chosen, 1);
  EXPECT_EQ(PairLoss(options, {0, -5000}, {0, 0}), 0);
  EXPECT_EQ(PairLossSlopes(options, {0, -5000}, {0, 0}).chosen, 0);
}

TEST(PairLoss, SlopeIsItsDerivative) {
  const double h = 1e-5;
  for (const double beta : {0.1, 1.0}) {
    for (const double smoothing : {0.0, 0.3}) {
      const DpoOptions options{.beta = beta, .label_smoothing = smoothing};
      for (const double chosen : {-9.0, -1.0, 2.0}) {
        const double up = PairLoss(options, {chosen + h, -2}, {-1, -1});
        const double down = PairLoss(options, {chosen - h, -2}, {-1, -1});
        EXPECT_NEAR(PairLossSlopes(options, {chosen, -2}, {-1, -1}).chosen, -(up - down) / (2 * h),
                    1e-9);
      }
    }
  }
}

// By hand: averages -1 and -2 of 2 and 3 tokens, reference averages -1.5 and -1.
TEST(PairLoss, IpoAndOrpoHaveTheValuesOfTheirPapers) {
  const PairTokens tokens{2, 3};
  const PairLogProbs policy{-2, -6};
  const PairLogProbs reference{-3, -3};
  const DpoOptions ipo{.beta = 0.1, .algorithm = PairAlgorithm::kIpo};
  EXPECT_NEAR(PairLoss(ipo, policy, reference, tokens), 12.25, 1e-12);  // (1 - -0.5 - 5)^2

  const DpoOptions orpo{.orpo_lambda = 0.5, .algorithm = PairAlgorithm::kOrpo};
  const auto odds = [](double x) { return std::exp(x) / (1 - std::exp(x)); };
  const double ratio = odds(-1) / odds(-2);
  EXPECT_NEAR(PairLoss(orpo, policy, reference, tokens), 1 + 0.5 * std::log(1 + 1 / ratio), 1e-12);
  // An answer of probability 1 has finite values.
  EXPECT_TRUE(std::isfinite(PairLoss(orpo, {0, -6}, {}, tokens)));
  EXPECT_TRUE(std::isfinite(PairLossSlopes(orpo, {0, -6}, {}, tokens).chosen));
}

TEST(PairLoss, SlopesOfIpoAndOrpoAreTheirDerivatives) {
  const double h = 1e-5;
  const PairTokens tokens{3, 5};
  for (const PairAlgorithm algorithm : {PairAlgorithm::kIpo, PairAlgorithm::kOrpo}) {
    const DpoOptions options{.beta = 0.4, .orpo_lambda = 0.7, .algorithm = algorithm};
    for (const double chosen : {-9.0, -1.0, -0.2}) {
      const auto loss = [&](double dc, double dr) {
        return PairLoss(options, {chosen + dc, -4 + dr}, {-2, -1}, tokens);
      };
      const PairLogProbs slopes = PairLossSlopes(options, {chosen, -4}, {-2, -1}, tokens);
      EXPECT_NEAR(slopes.chosen, -(loss(h, 0) - loss(-h, 0)) / (2 * h), 1e-6);
      EXPECT_NEAR(slopes.rejected, -(loss(0, h) - loss(0, -h)) / (2 * h), 1e-6);
    }
  }
}

TEST(WeighPairs, WeighsAnswersAgainstEachOtherAndLeavesTheRest) {
  const std::vector<TokenId> targets = {-1, 7, 8, -1, 9, -1};
  const std::vector<float> logprobs = {99, -1, -2, 99, -3, 99};
  std::vector<float> weights = {0, 1, 1, 0, 1, 0};
  const PairRows pair{{0, 3}, {3, 2}, 0, {-3, -3}};
  PreferenceFigures figures;
  WeighPairs({.beta = 0.5}, {&pair, 1}, targets, logprobs, weights, &figures);

  EXPECT_EQ(weights, (std::vector<float>{0, 0.25f, 0.25f, 0, -0.25f, 0}));
  EXPECT_EQ(figures.pairs, 1);
  EXPECT_EQ(figures.chosen_logprob, -3);
  EXPECT_EQ(figures.rejected_logprob, -3);
  EXPECT_EQ(figures.accuracy, 0) << "equal rewards are no preference";
}

TEST(PreferenceFigures, AreMeansOverPairs) {
  PreferenceFigures figures;
  const DpoOptions options{.beta = 0.5};
  figures.Add(options, {-1, -4}, {-2, -3});
  figures.Add(options, {-6, -1}, {-2, -3});
  const PreferenceFigures mean = figures.Mean();

  EXPECT_EQ(mean.chosen_reward, (0.5 - 2) / 2);
  EXPECT_EQ(mean.rejected_reward, (-0.5 + 1) / 2);
  EXPECT_EQ(mean.margin, mean.chosen_reward - mean.rejected_reward);
  EXPECT_EQ(mean.accuracy, 0.5);
}

// Pairs of the golden's tokens: prompts of three tokens, answers of different lengths, and a
// reference that differs from the model.
MicroBatch Pairs(int64_t vocab, int64_t* rows) {
  MicroBatch batch;
  uint32_t state = 99;
  const auto draw = [&] {
    state = state * 1664525u + 1013904223u;
    return static_cast<TokenId>((state >> 8) % static_cast<uint32_t>(vocab));
  };
  const auto add = [&](const std::vector<TokenId>& tokens) {
    batch.segments.push_back(
        {static_cast<int64_t>(batch.tokens.size()), static_cast<int64_t>(tokens.size()) - 1});
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const bool counts = i >= 2;
      batch.tokens.push_back(tokens[i]);
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.targets.push_back(counts ? tokens[i + 1] : -1);
      batch.weights.push_back(counts ? 1.0f : 0.0f);
      batch.sources.push_back({batch.segments.size(), static_cast<uint32_t>(i)});
    }
    return batch.segments.back();
  };
  for (int64_t p = 0; p < 3; ++p) {
    std::vector<TokenId> chosen = {draw(), draw(), draw()};
    std::vector<TokenId> rejected = chosen;
    for (int64_t i = 0; i < 4 + p; ++i) chosen.push_back(draw());
    for (int64_t i = 0; i < 6 - p; ++i) rejected.push_back(draw());
    PairRows pair{add(chosen), add(rejected), p, {}};
    pair.reference = {-20.0 - 3 * static_cast<double>(p), -24.0};
    batch.pairs.push_back(pair);
  }
  *rows = static_cast<int64_t>(batch.tokens.size());
  return batch;
}

class PreferenceGradient : public testing::TestWithParam<std::string> {};

// Along the gradient, the loss rises by the gradient's norm: every weight takes part. Extrapolation
// over two step sizes removes the curvature.
TEST_P(PreferenceGradient, IsWhatFiniteDifferencesSay) {
  const tests::Golden golden = tests::LoadGolden(GetParam());
  const engine::ModelDir dir = engine::ModelDir::Open(golden.dir);
  const auto json = engine::ParseUntrustedJson(*dir.ReadText("config.json"), golden.name);
  const engine::FamilySpec& family = engine::FindFamily(json, golden.name);
  const engine::ModelConfig config = family.parse_config(json, golden.name);
  int64_t rows = 0;
  const MicroBatch batch = Pairs(config.vocab_size, &rows);
  TrainerOptions options;
  options.dropout = false;
  options.row_length = rows;
  options.max_segments = 6;
  options.dpo = DpoOptions{.beta = 0.5, .label_smoothing = 0.1};
  for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
    SCOPED_TRACE(table->isa);
    ThreadPool pool(2);
    engine::OpsContext ops(*table, pool);
    Trainer trainer(family, config, engine::DType::kF32, options, ops);
    ParameterStore& parameters = trainer.parameters();
    parameters.LoadFrom(dir);
    trainer.MastersChanged();
    const StepResult result = trainer.Gradients({&batch, 1});
    EXPECT_NEAR(result.loss, trainer.Evaluate({&batch, 1}).loss, 1e-6);

    std::vector<std::vector<float>> masters;
    std::vector<std::vector<float>> gradients;
    double square = 0;
    for (size_t i = 0; i < parameters.size(); ++i) {
      masters.push_back(parameters.Master(i));
      const float* gradient = parameters.gradients()[i];
      gradients.emplace_back(gradient, gradient + masters[i].size());
      for (const float g : gradients[i]) square += static_cast<double>(g) * g;
    }
    const double norm = std::sqrt(square);
    ASSERT_GT(norm, 0.1);
    const auto loss_at = [&](double step) {
      for (size_t i = 0; i < masters.size(); ++i) {
        std::vector<float> moved = masters[i];
        for (size_t e = 0; e < moved.size(); ++e) {
          moved[e] += static_cast<float>(step / norm * static_cast<double>(gradients[i][e]));
        }
        parameters.SetMaster(i, moved);
      }
      trainer.MastersChanged();
      return trainer.Evaluate({&batch, 1}).loss;
    };
    const double h = std::min(2e-3, 0.01 / norm);  // steep models are also strongly curved
    const double wide = (loss_at(2 * h) - loss_at(-2 * h)) / (4 * h);
    const double narrow = (loss_at(h) - loss_at(-h)) / (2 * h);
    EXPECT_NEAR((4 * narrow - wide) / 3, norm, 2e-3 * norm);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PreferenceGradient,
                         testing::Values("llama3-tiny-rope-scaling", "gemma2-tiny", "gpt2-tiny",
                                         "minigpt-tiny"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tandem::training
