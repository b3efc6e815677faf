#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/model/config.h"
#include "engine/model/weights.h"

namespace tandem::engine {

// An activation: [rows, cols] of the rows being computed. What it is (arena slot, tape node) is the
// executor's affair.
struct Act {
  int32_t index = -1;
};

// The vocabulary in which a model family states its forward pass, once. ServingOps executes it
// against the paged KV cache, PlanOps measures it, the training recorder turns it into a static
// program. Dtypes, caches, threads, adapters and gradients live behind these verbs.
//
// Rounding (bf16 compute): RmsNorm, Rope, Attention, GatedActivation, Activate and Columns give the
// compute dtype; all others give f32. An op that needs the compute dtype (Linear, Attention) rounds
// an f32 input once and executors remember the rounded copy.
class LayerOps {
 public:
  virtual ~LayerOps() = default;

  virtual Act Embed(const Weight& table) = 0;           // of the rows' tokens
  virtual Act EmbedPositions(const Weight& table) = 0;  // of the rows' positions
  virtual Act RmsNorm(Act x, const Weight& gamma, float eps) = 0;
  // The norm of what does not go into a matrix product next, but into Rope or the residual stream:
  // f32, and of every run of gamma's length, so that a shorter gamma norms each head.
  virtual Act RmsNormF32(Act x, const Weight& gamma, float eps) = 0;
  virtual Act LayerNorm(Act x, const Weight& gamma, const Weight& beta, float eps) = 0;
  virtual Act Linear(Act x, const Weight& w, const Weight* bias) = 0;
  // Heads of the config's head_dim, at the rows' positions, by one of the family's tables.
  virtual Act Rope(Act x, size_t table) = 0;
  virtual Act Attention(Act q, Act k, Act v, const AttentionSpec& spec, int64_t layer) = 0;
  virtual Act GatedActivation(Act gate, Act up, Activation activation) = 0;
  virtual Act Activate(Act x, Activation activation) = 0;
  virtual Act Columns(Act x, int64_t first, int64_t count) = 0;  // a part of a fused projection
  virtual Act Add(Act a, Act b) = 0;
  virtual Act Scale(Act x, float factor) = 0;
  virtual Act Dropout(Act x, float rate) = 0;  // training only; serving passes x through
  // Exactly once, last. With a soft cap (above 0) logits are cap * tanh(logit / cap).
  virtual void Logits(Act x, const Weight& head, const Weight* bias, float soft_cap) = 0;
};

}  // namespace tandem::engine
