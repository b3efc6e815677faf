#pragma once

#include <cstdint>
#include <span>

#include "engine/base/aligned_buffer.h"
#include "engine/ops/matmul.h"

namespace tandem::training {

struct CrossEntropyArgs {
  engine::ConstMatrix hidden;        // [rows, hidden_dim] in the compute dtype: input of the head
  engine::PanelMatrix head;          // [vocab, hidden_dim]
  const float* bias = nullptr;       // [vocab] or null
  float soft_cap = 0;                // of the logits; 0 = off
  std::span<const TokenId> targets;  // [rows]; -1 where the row is not trained
  std::span<const float> weights;    // [rows]; 0 where the row is not trained
  float scale = 1;                   // 1 / sum of the weights of the whole (accumulated) batch
};

// Buffers of CrossEntropy that outlive a call: they grow to their largest use and stay.
struct CrossEntropyWorkspace {
  AlignedBuffer logits;
  AlignedBuffer gradient;
  AlignedBuffer hidden;
  AlignedBuffer dhidden;
  AlignedBuffer lse;
};

struct CrossEntropyResult {
  double weighted_loss = 0;   // sum of weight * negative log-likelihood (not scaled)
  double weight = 0;          // sum of the weights
  double correct_weight = 0;  // of rows whose target has the greatest logit; without dhidden only
};

// Token-weighted cross-entropy over tiles of rows: rows with weight 0 are left out before the
// product, logits of a tile live only inside it. Log-likelihoods go through engine::LogSumExp, the
// op that serving's log-probabilities use. When `dhidden` is not null the gradient of
// scale * loss is formed in the same pass: dhidden [rows, hidden_dim] (f32, written, zero for
// untrained rows), dhead [vocab, hidden_dim] += (null: frozen), dbias += (null: none).
// `token_logprobs` [rows] may be null.
CrossEntropyResult CrossEntropy(engine::OpsContext& ops, CrossEntropyWorkspace& workspace,
                                const CrossEntropyArgs& args, float* dhidden, float* dhead,
                                float* dbias, float* token_logprobs);

}  // namespace tandem::training
