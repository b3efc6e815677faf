#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/kv/kv_cache.h"
#include "engine/model/adapter.h"
#include "engine/model/batch_view.h"
#include "engine/model/families/layer_ops.h"
#include "engine/model/plan_ops.h"
#include "engine/ops/ops_context.h"

namespace tandem::engine {

class Model;

// Executes a family's forward pass on the rows of one step, against the paged KV cache. The plan
// gives each activation its place in an arena that is allocated once. After the last attention,
// rows are independent: only rows with logits or in hidden sums continue, and only rows with logits
// reach the head. Owned by the thread that calls it; borrows model and context.
class ServingOps final : public LayerOps {
 public:
  ServingOps(const Model& model, OpsContext& ops, int64_t max_rows, int64_t max_logit_rows);

  // As ModelRunner::Forward.
  std::span<const float> Run(const BatchView& batch, KvCache& kv);
  int64_t scratch_bytes() const;
  static int64_t ScratchBytes(const ForwardPlan& plan, int64_t max_rows, int64_t max_logit_rows);

  Act Embed(const Weight& table) override;
  Act EmbedPositions(const Weight& table) override;
  Act RmsNorm(Act x, const Weight& gamma, float eps) override;
  Act RmsNormF32(Act x, const Weight& gamma, float eps) override;
  Act PlainRmsNorm(Act x, int64_t length, float eps) override;
  Act SliceHeads(Act x, int64_t n_heads, int64_t first, int64_t count) override;
  Act JoinHeads(Act a, Act b, int64_t n_heads, int64_t b_dim) override;
  Act ScaleBy(Act x, const Weight& factor) override;
  Act LayerNorm(Act x, const Weight* gamma, const Weight* beta, float eps) override;
  Act Linear(Act x, const Weight& w, const Weight* bias) override;
  Act Rope(Act x, size_t table) override;
  Act RopeF32(Act x, size_t table) override;
  Act Attention(Act q, Act k, Act v, const AttentionSpec& spec, int64_t layer,
                const Weight* sinks) override;
  Act GatedActivation(Act gate, Act up, Activation activation) override;
  Act Activate(Act x, Activation activation) override;
  Act Columns(Act x, int64_t first, int64_t count) override;
  Act ColumnsF32(Act x, int64_t first, int64_t count) override;
  Act Route(Act logits, const Weight* selection_bias, const RouterSpec& spec) override;
  Act ExpertLinear(Act x, Act routing, std::span<const Weight> experts,
                   std::span<const Weight> biases) override;
  Act Combine(Act y, Act routing) override;
  Act ScaleExperts(Act routing, const Weight& scales) override;
  Act Mix(std::span<const Act> xs, Act weights, int64_t first, float offset) override;
  Act MatchMagnitude(Act x, Act like, float least_square) override;
  Act AboveCut(Act x, float deviations) override;
  Act ScaleColumns(Act x, const Weight& w) override;
  Act SoftCap(Act x, float cap) override;
  Act Add(Act a, Act b) override;
  Act Mul(Act a, Act b) override;
  Act Sigmoid(Act x) override;
  Act Clamp(Act x, float limit) override;
  Act Scale(Act x, float factor) override;
  Act Dropout(Act x, float rate) override;
  Act CausalConv(Act x, const Weight& w, const Weight* bias, const ConvSpec& spec) override;
  Act GatedDelta(Act qkv, Act a, Act b, const Weight& a_log, const Weight& dt_bias,
                 const DeltaSpec& spec) override;
  Act SelectiveScan(Act xbc, Act dt, const Weight& a_log, const Weight& dt_bias, const Weight& d,
                    const ScanSpec& spec) override;
  Act Gate(Act x, Act gate, GateForm form) override;
  void Logits(Act x, const Weight& head, const Weight* bias, float soft_cap) override;

 private:
  void CheckBatch(const BatchView& batch) const;
  void CheckBlocks(const BatchView& batch, const KvCache& kv) const;
  // The step's slices with the blocks of a layer.
  std::span<const AttentionSlice> SlicesOf(const AttentionSpec& spec, int64_t layer) const;
  void CheckStates(const BatchView& batch) const;
  int64_t StateOffset(int32_t op) const { return plan_.ops[static_cast<size_t>(op)].state_offset; }
  // The next activation of the plan. Its matrix has the rows that are still computed.
  Act NextAct();
  Matrix At(Act x);
  const float* F32(Act x);
  Matrix RoundedAt(Act x);
  // `x` in the compute dtype; rounds it at the first call of a step.
  ConstMatrix ComputeInput(Act x);
  // Lists the rows of logits and of hidden sums: all that is computed after the last attention.
  void ListKeptRows();
  void KeepListedRowsOnly(int32_t finished_op);
  // Adds the final hidden states to the hidden sums, then keeps the rows of logits only.
  void TakeHiddenSums(Act x);
  // Consecutive rows that one weight applies to: the model's, or an adapter's own copy.
  struct WeightRun {
    const Weight* weight;
    const Weight* second;  // bias or beta; may be null
    int64_t first_row;
    int64_t n_rows;
  };
  // All computed rows, in order. Adapters with DoRA for a linear layer have runs without a bias,
  // which AddAdapters adds. Valid until the next call.
  std::span<const WeightRun> RunsOf(const Weight& weight, const Weight* second, WeightUse use);
  // Adds the adapters' part of the product with a weight, row by row.
  void AddAdapters(const ConstMatrix& x, const Weight& weight, const Weight* bias, WeightUse use,
                   float* y, int64_t ldy);
  // Adds the adapters' part of an embedding.
  void AddTables(int32_t table, const Matrix& y);
  Act EmbedIds(const Weight& table, std::span<const int32_t> ids, WeightUse use);
  // Drops the adapters' rows that are not in `kept` and renumbers the others.
  void KeepAdapterRows(std::span<const int32_t> kept);
  // Likewise for the slots of a routing; y is [rows, top_k * n].
  void AddExpertAdapters(const ConstMatrix& x, const ConstMatrix& routing,
                         std::span<const Weight> experts, const Matrix& y);

  const Model& model_;
  OpsContext& ops_;
  const ForwardPlan plan_;
  const int64_t max_rows_;
  const int64_t max_logit_rows_;
  AlignedBuffer arena_;        // [arena_bytes_per_row * rows of the step]
  AlignedBuffer logits_;       // [max_logit_rows, vocab_size] f32
  std::vector<bool> rounded_;  // by activation: its rounded copy exists
  const engine::ScratchBytes expert_scratch_;

  // The step being computed.
  const BatchView* batch_ = nullptr;
  KvCache* kv_ = nullptr;
  int64_t rows_ = 0;  // still computed: all of the batch; after the last attention, kept_rows_
  std::vector<int32_t> kept_rows_;  // ascending
  std::vector<int32_t> head_rows_;  // scratch of TakeHiddenSums: places of logit rows in kept_rows_
  struct AdapterRows {
    const Adapter* adapter;
    int64_t first_row;
    int64_t n_rows;
  };
  std::vector<AdapterRows> adapter_rows_;  // of the computed rows, in order; without base rows
  std::vector<LoraRows> lora_rows_;        // scratch of AddAdapters
  std::vector<WeightRun> runs_;            // scratch of RunsOf
  std::vector<StateRows> state_rows_;      // the slices, for layers with state
  int32_t next_op_ = 0;
  int32_t next_act_ = 0;
};

}  // namespace tandem::engine
