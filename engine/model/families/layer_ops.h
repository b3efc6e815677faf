#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/model/families/config.h"
#include "engine/model/families/weights.h"

namespace tandem::engine {

// Handle of an activation: [rows, cols] of the rows being computed. Its meaning (arena slot, tape
// node) belongs to the executor.
struct Act {
  int32_t index = -1;
};

// The vocabulary in which a model family states its forward pass, once. ServingOps executes it
// against the paged KV cache, PlanOps measures it and the training recorder turns it into a static
// program. Executors hide dtypes, caches, threads, adapters and gradients.
//
// Rounding (bf16 compute): RmsNorm, Rope, Attention, GatedActivation, Activate and Columns return
// the compute dtype; all others return f32. An op that needs the compute dtype (Linear, Attention)
// rounds an f32 input once; executors keep the rounded copy.
class LayerOps {
 public:
  virtual ~LayerOps() = default;

  virtual Act Embed(const Weight& table) = 0;           // by the rows' tokens
  virtual Act EmbedPositions(const Weight& table) = 0;  // by the rows' positions
  virtual Act RmsNorm(Act x, const Weight& gamma, float eps) = 0;
  // RMSNorm for inputs of Rope or the residual stream. Returns f32 and norms every run of gamma's
  // length, so a shorter gamma norms each head.
  virtual Act RmsNormF32(Act x, const Weight& gamma, float eps) = 0;
  virtual Act LayerNorm(Act x, const Weight& gamma, const Weight& beta, float eps) = 0;
  virtual Act Linear(Act x, const Weight& w, const Weight* bias) = 0;
  // Rotates heads of the config's head_dim at the rows' positions, by one of the family's tables.
  virtual Act Rope(Act x, size_t table) = 0;
  virtual Act Attention(Act q, Act k, Act v, const AttentionSpec& spec, int64_t layer) = 0;
  virtual Act GatedActivation(Act gate, Act up, Activation activation) = 0;
  virtual Act Activate(Act x, Activation activation) = 0;
  virtual Act Columns(Act x, int64_t first, int64_t count) = 0;  // slice of a fused projection
  virtual Act Add(Act a, Act b) = 0;
  virtual Act Scale(Act x, float factor) = 0;
  virtual Act Dropout(Act x, float rate) = 0;  // training only; serving passes x through
  // Called exactly once, last. With soft_cap > 0, logits are cap * tanh(logit / cap).
  virtual void Logits(Act x, const Weight& head, const Weight* bias, float soft_cap) = 0;
};

}  // namespace tandem::engine
