#pragma once

#include <cstdint>
#include <span>

#include "engine/base/aligned_buffer.h"
#include "engine/ops/lora.h"
#include "engine/ops/matmul.h"
#include "training/ops/distillation.h"

namespace tandem::training {

// The adapter of the head: logits += B . h with h = scale * (A . hidden) (engine/ops/lora.h).
struct HeadLora {
  engine::LoraMatrices matrices;
  float* da = nullptr;  // gradients [rank, hidden_dim] and [vocab, rank], added to
  float* db = nullptr;
};

struct CrossEntropyArgs {
  engine::ConstMatrix hidden;        // [rows, hidden_dim] in the compute dtype: input of the head
  engine::PanelMatrix head;          // [vocab, hidden_dim]
  const float* bias = nullptr;       // [vocab] or null
  float soft_cap = 0;                // of the logits; 0 = off
  std::span<const TokenId> targets;  // [rows]; -1 where the row is not trained
  std::span<const float> weights;    // [rows]; 0 where the row is not trained
  float scale = 1;                   // 1 / sum of weights of the whole (accumulated) batch
  // Adds z_loss * log-sum-exp^2 to every row's loss (PaLM, Chowdhery et al., 2022, section 5).
  float z_loss = 0;
  const HeadLora* lora = nullptr;              // null: no adapter
  const Distillation* distillation = nullptr;  // null: none
  int64_t tile_rows = 0;                       // 0: as many as kCrossEntropyBytes allows
};

// Limit of CrossEntropy's workspace, unless 64 rows of logits need more.
constexpr int64_t kCrossEntropyBytes = 256 << 20;

// Bytes of the workspace for `rows` trained rows of a micro-batch. Distillation needs a second
// matrix of the size of the logits' gradient.
int64_t CrossEntropyWorkspaceBytes(int64_t rows, int64_t vocab, int64_t hidden_dim,
                                   engine::DType dtype, bool distils);

// Buffers of CrossEntropy that outlive a call. They grow to their largest use.
struct CrossEntropyWorkspace {
  AlignedBuffer logits;    // then their gradient
  AlignedBuffer gradient;  // with distillation
  AlignedBuffer hidden;
  AlignedBuffer dhidden;
  AlignedBuffer lse;
  AlignedBuffer lora;  // h of a tile, then dh in f32 and in the compute dtype

  int64_t bytes() const {
    return static_cast<int64_t>(logits.size() + gradient.size() + hidden.size() + dhidden.size() +
                                lse.size() + lora.size());
  }
};

struct CrossEntropyResult {
  double weighted_loss = 0;    // sum of weight * negative log-likelihood (not scaled)
  double weight = 0;           // sum of the weights
  double correct_weight = 0;   // of rows whose target has the greatest logit
  double weighted_z_loss = 0;  // sum of weight * z_loss * log-sum-exp^2; not part of weighted_loss
  double weighted_divergence = 0;  // sum of weight * T^2 KL (Distillation); not part of it either
};

// Token-weighted cross-entropy over tiles of rows. Rows with weight 0 are skipped before the
// product; logits exist for one tile at a time. Log-likelihoods use engine::LogSumExp, as serving's
// log-probabilities do. With `dhidden` the same pass forms the gradient of scale * (loss + z_loss *
// log-sum-exp^2), where distillation replaces the loss as Distillation says:
// - dhidden [rows, hidden_dim] (f32) is written, with zeros for untrained rows;
// - dhead [vocab, hidden_dim] += (null: frozen, skips its product); dbias += (null: no bias).
// The tile size does not change a bit of the losses and dhidden; dhead and dbias sum tile by tile.
// `token_logprobs` [rows] may be null.
CrossEntropyResult CrossEntropy(engine::OpsContext& ops, CrossEntropyWorkspace& workspace,
                                const CrossEntropyArgs& args, float* dhidden, float* dhead,
                                float* dbias, float* token_logprobs);

}  // namespace tandem::training
