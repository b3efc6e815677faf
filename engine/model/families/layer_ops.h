#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/model/families/config.h"
#include "engine/model/families/weights.h"
#include "engine/ops/experts.h"
#include "engine/ops/recurrence.h"

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
// the compute dtype; all others return f32 (a name ends in F32 where both exist). An op that needs
// the compute dtype (Linear, Attention) rounds an f32 input once; executors keep the rounded copy.
class LayerOps {
 public:
  virtual ~LayerOps() = default;

  // By the rows' tokens. A token beyond the table has row 0.
  virtual Act Embed(const Weight& table) = 0;
  virtual Act EmbedPositions(const Weight& table) = 0;  // by the rows' positions
  virtual Act RmsNorm(Act x, const Weight& gamma, float eps) = 0;
  // RMSNorm for inputs of Rope or the residual stream. Returns f32 and norms every run of gamma's
  // length, so a shorter gamma norms each head.
  virtual Act RmsNormF32(Act x, const Weight& gamma, float eps) = 0;
  // The same without a scale, over runs of `length` columns.
  virtual Act PlainRmsNorm(Act x, int64_t length, float eps) = 0;
  // A null gamma means ones, a null beta zeros. REQUIRES: gamma where there is beta.
  virtual Act LayerNorm(Act x, const Weight* gamma, const Weight* beta, float eps) = 0;
  virtual Act Linear(Act x, const Weight& w, const Weight* bias) = 0;
  // Rotates heads of the table's head_dim at the rows' positions, by one of the family's tables.
  virtual Act Rope(Act x, size_t table) = 0;
  virtual Act RopeF32(Act x, size_t table) = 0;  // for norms after rope
  // `sinks` [n_heads], or null: one more score per head in every softmax, without a value.
  virtual Act Attention(Act q, Act k, Act v, const AttentionSpec& spec, int64_t layer,
                        const Weight* sinks = nullptr) = 0;
  virtual Act GatedActivation(Act gate, Act up, Activation activation) = 0;
  virtual Act Activate(Act x, Activation activation) = 0;
  virtual Act Columns(Act x, int64_t first, int64_t count) = 0;  // slice of a fused projection
  virtual Act ColumnsF32(Act x, int64_t first, int64_t count) = 0;
  // Columns [first, first + count) of each of n_heads heads.
  virtual Act SliceHeads(Act x, int64_t n_heads, int64_t first, int64_t count) = 0;
  // Each head of `a` followed by that of `b`; `b` may have one head of b_dim columns for all.
  virtual Act JoinHeads(Act a, Act b, int64_t n_heads, int64_t b_dim) = 0;
  // Experts (engine/ops/experts.h). Route turns router logits [rows, n_experts] into a routing
  // [rows, 2 * top_k]: expert ids, then weights. `selection_bias` may be null.
  virtual Act Route(Act logits, const Weight* selection_bias, const RouterSpec& spec) = 0;
  // Returns [rows, top_k * n]: slot s of a row is the product with its expert. x is [rows, k],
  // shared by the slots, or [rows, top_k * k]. `experts` are matrices [n, k] of all experts in
  // order; `biases` is empty or has one vector each.
  virtual Act ExpertLinear(Act x, Act routing, std::span<const Weight> experts,
                           std::span<const Weight> biases) = 0;
  // Returns [rows, n]: the sum over slots of weight * y, for y [rows, top_k * n].
  virtual Act Combine(Act y, Act routing) = 0;
  // A routing whose weights are multiplied by their experts' numbers; scales [n_experts].
  virtual Act ScaleExperts(Act routing, const Weight& scales) = 0;
  // Row mixes (engine/ops/row_mix.h). Mix: the sum over i of (weights[first + i] + offset) * xs[i].
  virtual Act Mix(std::span<const Act> xs, Act weights, int64_t first, float offset) = 0;
  virtual Act MatchMagnitude(Act x, Act like, float least_square) = 0;
  virtual Act AboveCut(Act x, float deviations) = 0;
  virtual Act ScaleColumns(Act x, const Weight& w) = 0;  // each column by its trained number
  virtual Act SoftCap(Act x, float cap) = 0;             // cap * tanh(x / cap)
  virtual Act Add(Act a, Act b) = 0;
  virtual Act Mul(Act a, Act b) = 0;  // element by element
  virtual Act Sigmoid(Act x) = 0;
  virtual Act Clamp(Act x, float limit) = 0;  // to [-limit, limit]
  virtual Act Scale(Act x, float factor) = 0;
  // By a number of the checkpoint (a vector of one) that training does not change.
  virtual Act ScaleBy(Act x, const Weight& factor) = 0;
  virtual Act Dropout(Act x, float rate) = 0;  // training only; serving passes x through
  // Layers with state (engine/ops/recurrence.h); all return f32. `w` and the other weights are
  // vectors: w [channels * kernel], a_log, dt_bias and d [heads].
  virtual Act CausalConv(Act x, const Weight& w, const Weight* bias, const ConvSpec& spec) = 0;
  virtual Act GatedDelta(Act qkv, Act a, Act b, const Weight& a_log, const Weight& dt_bias,
                         const DeltaSpec& spec) = 0;
  virtual Act SelectiveScan(Act xbc, Act dt, const Weight& a_log, const Weight& dt_bias,
                            const Weight& d, const ScanSpec& spec) = 0;
  // x * sigmoid(gate) or x * silu(gate), in f32; x may be in the compute dtype.
  virtual Act Gate(Act x, Act gate, GateForm form) = 0;
  // Called exactly once, last. With soft_cap > 0, logits are cap * tanh(logit / cap).
  virtual void Logits(Act x, const Weight& head, const Weight* bias, float soft_cap) = 0;
};

}  // namespace tandem::engine
