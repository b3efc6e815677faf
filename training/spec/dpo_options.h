#pragma once

namespace tandem::training {

enum class PairAlgorithm {
  kDpo,   // Rafailov et al., 2023
  kIpo,   // Azar et al., 2023, with log-probabilities averaged over an answer's tokens
  kOrpo,  // Hong et al., 2024: no reference
};

struct DpoOptions {
  double beta = 0.1;           // weight of the pull towards the reference
  double orpo_lambda = 0.1;    // for kOrpo: weight of the odds ratio
  double label_smoothing = 0;  // assumed share of pairs with the wrong preference
  PairAlgorithm algorithm = PairAlgorithm::kDpo;

  bool has_reference() const { return algorithm != PairAlgorithm::kOrpo; }
};

}  // namespace tandem::training
