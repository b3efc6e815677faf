#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/ops/attention.h"
#include "training/spec/dpo_options.h"

namespace tandem::training {

// Direct preference optimisation (Rafailov et al., 2023): the arithmetic of pairs of answers, given
// the log-probabilities of their tokens. Knows no programs and no files.

// Of the answers of a pair: the sum over their trained tokens.
struct PairLogProbs {
  double chosen = 0;
  double rejected = 0;

  bool operator==(const PairLogProbs&) const = default;
};

// A pair in a micro-batch.
struct PairRows {
  Segment chosen;
  Segment rejected;
  int64_t index = 0;       // of the pair in its source
  PairLogProbs reference;  // of the model as the run began with it
};

// -(1 - e) log sigma(beta d) - e log sigma(-beta d), where d = (policy's chosen - rejected) -
// (reference's chosen - rejected); e is the label smoothing.
double PairLoss(const DpoOptions& options, const PairLogProbs& policy,
                const PairLogProbs& reference);
// Minus its derivative by d: what a unit of log-probability of the chosen answer is worth.
double PairLossSlope(const DpoOptions& options, const PairLogProbs& policy,
                     const PairLogProbs& reference);

// Of pairs: sums while they are added, means after Mean(). A reward is beta times what the policy
// has gained on the reference.
struct PreferenceFigures {
  double loss = 0;
  double chosen_reward = 0;
  double rejected_reward = 0;
  double accuracy = 0;  // share of pairs whose chosen answer has the greater reward
  double margin = 0;    // chosen reward - rejected reward
  double chosen_logprob = 0;
  double rejected_logprob = 0;
  int64_t pairs = 0;

  void Add(const DpoOptions& options, const PairLogProbs& policy, const PairLogProbs& reference);
  PreferenceFigures Mean() const;
};

// The policy's log-probabilities of a pair. `targets` and `token_logprobs` are of all rows of the
// micro-batch; rows without a target do not count. Summed in f64, in the order of the rows.
PairLogProbs LogProbsOf(const PairRows& pair, std::span<const TokenId> targets,
                        std::span<const float> token_logprobs);

// Adds the pairs' figures, and makes of `weights` (of all rows, 1 where a target counts) what
// cross-entropy must weigh every token's loss with for the gradient of the pairs' summed loss.
void WeighPairs(const DpoOptions& options, std::span<const PairRows> pairs,
                std::span<const TokenId> targets, std::span<const float> token_logprobs,
                std::span<float> weights, PreferenceFigures* figures);

}  // namespace tandem::training
