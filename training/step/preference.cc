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

double PairLoss(const DpoOptions& options, const PairLogProbs& policy,
                const PairLogProbs& reference) {
  const double x = Scaled(options, policy, reference);
  const double e = options.label_smoothing;
  return (1 - e) * MinusLogSigmoid(x) + e * MinusLogSigmoid(-x);
}

double PairLossSlope(const DpoOptions& options, const PairLogProbs& policy,
                     const PairLogProbs& reference) {
  const double x = Scaled(options, policy, reference);
  const double e = options.label_smoothing;
  return options.beta * ((1 - e) * Sigmoid(-x) - e * Sigmoid(x));
}

void PreferenceFigures::Add(const DpoOptions& options, const PairLogProbs& policy,
                            const PairLogProbs& reference) {
  const double chosen = options.beta * (policy.chosen - reference.chosen);
  const double rejected = options.beta * (policy.rejected - reference.rejected);
  loss += PairLoss(options, policy, reference);
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

PairLogProbs LogProbsOf(const PairRows& pair, std::span<const TokenId> targets,
                        std::span<const float> token_logprobs) {
  return {Sum(pair.chosen, targets, token_logprobs), Sum(pair.rejected, targets, token_logprobs)};
}

void WeighPairs(const DpoOptions& options, std::span<const PairRows> pairs,
                std::span<const TokenId> targets, std::span<const float> token_logprobs,
                std::span<float> weights, PreferenceFigures* figures) {
  for (const PairRows& pair : pairs) {
    const PairLogProbs policy = LogProbsOf(pair, targets, token_logprobs);
    figures->Add(options, policy, pair.reference);
    const double slope = PairLossSlope(options, policy, pair.reference);
    Weigh(pair.chosen, slope, weights);
    Weigh(pair.rejected, -slope, weights);
  }
}

}  // namespace tandem::training
