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
  int64_t tile_rows = 0;             // 0: as many as kCrossEntropyBytes allow
};

// What CrossEntropy may take besides its arguments, unless 64 rows of logits take more.
constexpr int64_t kCrossEntropyBytes = 256 << 20;

// What it takes for so many trained rows of a micro-batch.
int64_t CrossEntropyWorkspaceBytes(int64_t rows, int64_t vocab, int64_t hidden_dim,
                                   engine::DType dtype);

// Buffers of CrossEntropy that outlive a call: they grow to their largest use and stay.
struct CrossEntropyWorkspace {
  AlignedBuffer logits;
  AlignedBuffer gradient;
  AlignedBuffer hidden;
  AlignedBuffer dhidden;
  AlignedBuffer lse;

  int64_t bytes() const {
    return static_cast<int64_t>(logits.size() + gradient.size() + hidden.size() + dhidden.size() +
                                lse.size());
  }
};

struct CrossEntropyResult {
  double weighted_loss = 0;   // sum of weight * negative log-likelihood (not scaled)
  double weight = 0;          // sum of the weights
  double correct_weight = 0;  // of rows whose target has the greatest logit
};

// Token-weighted cross-entropy over tiles of rows: rows with weight 0 are left out before the
// product, logits of a tile live only inside it. Log-likelihoods go through engine::LogSumExp, the
// op that serving's log-probabilities use. When `dhidden` is not null the gradient of
// scale * loss is formed in the same pass: dhidden [rows, hidden_dim] (f32, written, zero for
// untrained rows), dhead [vocab, hidden_dim] += (null: frozen, no product is made for it), dbias +=
// (null: none). The size of the tiles moves no bit of losses and dhidden; dhead and dbias sum tile
// by tile. `token_logprobs` [rows] may be null.
CrossEntropyResult CrossEntropy(engine::OpsContext& ops, CrossEntropyWorkspace& workspace,
                                const CrossEntropyArgs& args, float* dhidden, float* dhead,
                                float* dbias, float* token_logprobs);

}  // namespace tandem::training
