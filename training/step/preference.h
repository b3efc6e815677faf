#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "training/ops/attention.h"
#include "training/spec/dpo_options.h"

namespace tandem::training {

// Losses over pairs of answers (DPO, IPO, ORPO): arithmetic on the log-probabilities of their
// tokens. Knows neither programs nor files.

// Log-probabilities of a pair's answers, each summed over its trained tokens.
struct PairLogProbs {
  double chosen = 0;
  double rejected = 0;

  bool operator==(const PairLogProbs&) const = default;
};

// Trained tokens of a pair's answers.
struct PairTokens {
  double chosen = 1;
  double rejected = 1;
};

// A pair in a micro-batch.
struct PairRows {
  Segment chosen;
  Segment rejected;
  int64_t index = 0;       // of the pair in its source
  PairLogProbs reference;  // under the model that the run began with
};

// The loss of a pair. d is the policy's (chosen - rejected) minus the reference's.
// - DPO: -(1 - e) log sigma(beta d) - e log sigma(-beta d), with the label smoothing e.
// - IPO: (d - 1 / (2 beta))^2, with d of log-probabilities averaged over tokens, as in trl.
// - ORPO: -c - lambda log sigma(log odds(c) - log odds(r)), with c and r the averages of chosen and
//   rejected and odds(x) = exp(x) / (1 - exp(x)).
double PairLoss(const DpoOptions& options, const PairLogProbs& policy,
                const PairLogProbs& reference, const PairTokens& tokens = {});
// Minus the derivatives of PairLoss by the policy's two (summed) log-probabilities.
PairLogProbs PairLossSlopes(const DpoOptions& options, const PairLogProbs& policy,
                            const PairLogProbs& reference, const PairTokens& tokens = {});
PairTokens TokensOf(const PairRows& pair, std::span<const TokenId> targets);

// Sums over pairs. Mean() returns a copy with the means, or zeros without pairs. A reward is beta
// times the gain of the policy's log-probability over the reference's, averaged over tokens for IPO
// and ORPO.
struct PreferenceFigures {
  double loss = 0;
  double chosen_reward = 0;
  double rejected_reward = 0;
  double accuracy = 0;  // pairs whose chosen answer has the greater reward
  double margin = 0;    // chosen reward - rejected reward
  double chosen_logprob = 0;
  double rejected_logprob = 0;
  int64_t pairs = 0;

  void Add(const DpoOptions& options, const PairLogProbs& policy, const PairLogProbs& reference,
           const PairTokens& tokens = {});
  PreferenceFigures Mean() const;

  // The members in their order, to gather sums from ranks.
  static constexpr size_t kNumbers = 8;
  std::array<double, kNumbers> Numbers() const;
  void AddNumbers(std::span<const double> numbers);
};

// The policy's log-probabilities of a pair. `targets` and `token_logprobs` cover all rows of the
// micro-batch; rows without a target do not count. Sums in f64, in row order.
PairLogProbs LogProbsOf(const PairRows& pair, std::span<const TokenId> targets,
                        std::span<const float> token_logprobs);

// Adds the pairs to `figures` and scales `weights`, which holds 1 for every row that counts.
// Cross-entropy with the resulting weights has the gradient of the pairs' summed loss.
void WeighPairs(const DpoOptions& options, std::span<const PairRows> pairs,
                std::span<const TokenId> targets, std::span<const float> token_logprobs,
                std::span<float> weights, PreferenceFigures* figures);

}  // namespace tandem::training
