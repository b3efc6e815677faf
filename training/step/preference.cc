#include "training/step/preference.h"

#include <algorithm>
#include <cmath>

namespace tandem::training {
namespace {

// -log sigma(x), computed without overflow.
double MinusLogSigmoid(double x) { return std::log1p(std::exp(-std::abs(x))) + std::max(-x, 0.0); }

double Sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return (x >= 0 ? 1 : e) / (1 + e);
}

double Scaled(const DpoOptions& options, const PairLogProbs& policy,
              const PairLogProbs& reference) {
  return options.beta *
         ((policy.chosen - policy.rejected) - (reference.chosen - reference.rejected));
}

double Sum(const Segment& segment, std::span<const TokenId> targets,
           std::span<const float> token_logprobs) {
  double sum = 0;
  for (int64_t row = segment.first_row; row < segment.first_row + segment.n_rows; ++row) {
    const auto i = static_cast<size_t>(row);
    if (targets[i] >= 0) sum += static_cast<double>(token_logprobs[i]);
  }
  return sum;
}

void Weigh(const Segment& segment, double factor, std::span<float> weights) {
  for (int64_t row = segment.first_row; row < segment.first_row + segment.n_rows; ++row) {
    weights[static_cast<size_t>(row)] *= static_cast<float>(factor);
  }
}

}  // namespace

namespace {

// ORPO divides by 1 - exp(average).
constexpr double kMostAverage = -1e-6;

// What IPO and ORPO compute with.
PairLogProbs Averaged(const PairLogProbs& sums, const PairTokens& tokens) {
  return {sums.chosen / tokens.chosen, sums.rejected / tokens.rejected};
}

double IpoDistance(const DpoOptions& options, const PairLogProbs& policy,
                   const PairLogProbs& reference, const PairTokens& tokens) {
  const PairLogProbs a = Averaged(policy, tokens);
  const PairLogProbs b = Averaged(reference, tokens);
  return (a.chosen - a.rejected) - (b.chosen - b.rejected) - 1 / (2 * options.beta);
}

double OneMinusExp(double average) { return -std::expm1(std::min(average, kMostAverage)); }

double LogOddsRatio(const PairLogProbs& average) {
  return (average.chosen - std::log(OneMinusExp(average.chosen))) -
         (average.rejected - std::log(OneMinusExp(average.rejected)));
}

}  // namespace

double PairLoss(const DpoOptions& options, const PairLogProbs& policy,
                const PairLogProbs& reference, const PairTokens& tokens) {
  if (options.algorithm == PairAlgorithm::kIpo) {
    const double distance = IpoDistance(options, policy, reference, tokens);
    return distance * distance;
  }
  if (options.algorithm == PairAlgorithm::kOrpo) {
    const PairLogProbs average = Averaged(policy, tokens);
    return -average.chosen + options.orpo_lambda * MinusLogSigmoid(LogOddsRatio(average));
  }
  const double x = Scaled(options, policy, reference);
  const double e = options.label_smoothing;
  return (1 - e) * MinusLogSigmoid(x) + e * MinusLogSigmoid(-x);
}

PairLogProbs PairLossSlopes(const DpoOptions& options, const PairLogProbs& policy,
                            const PairLogProbs& reference, const PairTokens& tokens) {
  if (options.algorithm == PairAlgorithm::kIpo) {
    const double slope = -2 * IpoDistance(options, policy, reference, tokens);
    return {slope / tokens.chosen, -slope / tokens.rejected};
  }
  if (options.algorithm == PairAlgorithm::kOrpo) {
    const PairLogProbs average = Averaged(policy, tokens);
    const double pull = options.orpo_lambda * Sigmoid(-LogOddsRatio(average));
    return {(1 + pull / OneMinusExp(average.chosen)) / tokens.chosen,
            -pull / OneMinusExp(average.rejected) / tokens.rejected};
  }
  const double x = Scaled(options, policy, reference);
  const double e = options.label_smoothing;
  const double slope = options.beta * ((1 - e) * Sigmoid(-x) - e * Sigmoid(x));
  return {slope, -slope};
}

PairTokens TokensOf(const PairRows& pair, std::span<const TokenId> targets) {
  const auto count = [&](const Segment& segment) {
    const auto first = targets.begin() + static_cast<std::ptrdiff_t>(segment.first_row);
    const auto n = std::count_if(first, first + static_cast<std::ptrdiff_t>(segment.n_rows),
                                 [](TokenId target) { return target >= 0; });
    return static_cast<double>(std::max<std::ptrdiff_t>(n, 1));
  };
  return {count(pair.chosen), count(pair.rejected)};
}

void PreferenceFigures::Add(const DpoOptions& options, const PairLogProbs& policy,
                            const PairLogProbs& reference, const PairTokens& tokens) {
  const bool averages = options.algorithm != PairAlgorithm::kDpo;
  const double beta =
      options.algorithm == PairAlgorithm::kOrpo ? options.orpo_lambda : options.beta;
  const double chosen = beta * (policy.chosen - reference.chosen) / (averages ? tokens.chosen : 1);
  const double rejected =
      beta * (policy.rejected - reference.rejected) / (averages ? tokens.rejected : 1);
  loss += PairLoss(options, policy, reference, tokens);
  chosen_reward += chosen;
  rejected_reward += rejected;
  accuracy += chosen > rejected ? 1 : 0;
  margin += chosen - rejected;
  chosen_logprob += policy.chosen;
  rejected_logprob += policy.rejected;
  ++pairs;
}

PreferenceFigures PreferenceFigures::Mean() const {
  PreferenceFigures mean = *this;
  const auto n = static_cast<double>(std::max<int64_t>(pairs, 1));
  for (double* figure : {&mean.loss, &mean.chosen_reward, &mean.rejected_reward, &mean.accuracy,
                         &mean.margin, &mean.chosen_logprob, &mean.rejected_logprob}) {
    *figure /= n;
  }
  return mean;
}

std::array<double, PreferenceFigures::kNumbers> PreferenceFigures::Numbers() const {
  return {loss,   chosen_reward,  rejected_reward,  accuracy,
          margin, chosen_logprob, rejected_logprob, static_cast<double>(pairs)};
}

void PreferenceFigures::AddNumbers(std::span<const double> numbers) {
  loss += numbers[0];
  chosen_reward += numbers[1];
  rejected_reward += numbers[2];
  accuracy += numbers[3];
  margin += numbers[4];
  chosen_logprob += numbers[5];
  rejected_logprob += numbers[6];
  pairs += static_cast<int64_t>(numbers[7]);
}

PairLogProbs LogProbsOf(const PairRows& pair, std::span<const TokenId> targets,
                        std::span<const float> token_logprobs) {
  return {Sum(pair.chosen, targets, token_logprobs), Sum(pair.rejected, targets, token_logprobs)};
}

void WeighPairs(const DpoOptions& options, std::span<const PairRows> pairs,
                std::span<const TokenId> targets, std::span<const float> token_logprobs,
                std::span<float> weights, PreferenceFigures* figures) {
  for (const PairRows& pair : pairs) {
    const PairLogProbs policy = LogProbsOf(pair, targets, token_logprobs);
    const PairTokens tokens = TokensOf(pair, targets);
    figures->Add(options, policy, pair.reference, tokens);
    const PairLogProbs slopes = PairLossSlopes(options, policy, pair.reference, tokens);
    Weigh(pair.chosen, slopes.chosen, weights);
    Weigh(pair.rejected, slopes.rejected, weights);
  }
}

}  // namespace tandem::training
