#pragma once

namespace tandem::training {

// How matrices of fresh weights are drawn (ParameterStore::InitFresh).
enum class FreshInit {
  kNormal,         // one deviation, less at the ends of residual branches
  kXavierUniform,  // uniform within sqrt(6 / (n + k)) (Glorot and Bengio, 2010); embeddings normal
                   // with standard deviation 1 / sqrt(width)
};

}  // namespace tandem::training
