#pragma once

namespace tandem::training {

// The distribution that matrices of fresh weights are drawn from (ParameterStore::InitFresh).
enum class FreshInit {
  kNormal,         // one standard deviation, smaller at the ends of residual branches
  kXavierUniform,  // uniform within sqrt(6 / (n + k)) (Glorot and Bengio, 2010); embeddings are
                   // normal with standard deviation 1 / sqrt(width)
};

}  // namespace tandem::training
