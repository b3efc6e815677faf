#include "engine/model/serving_ops.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "engine/base/check.h"
#include "engine/model/matrix_part.h"
#include "engine/model/model.h"
#include "engine/ops/attention.h"
#include "engine/ops/expert_lora.h"
#include "engine/ops/heads.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::engine {

namespace {

size_t ArenaBytes(const ForwardPlan& plan, int64_t max_rows) {
  TANDEM_CHECK(max_rows >= 1);
  return static_cast<size_t>(CheckedMul(plan.arena_bytes_per_row, max_rows, "activation arena"));
}

size_t LogitBytes(const ForwardPlan& plan, int64_t max_logit_rows) {
  TANDEM_CHECK(max_logit_rows >= 1);
  const int64_t floats = CheckedMul(plan.vocab_size, max_logit_rows, "logits");
  return static_cast<size_t>(CheckedMul<int64_t>(floats, sizeof(float), "logits"));
}

// Moves rows to the front. Rows are ascending, so no move overwrites a row that is still needed.
void KeepRows(const Matrix& all, std::span<const int32_t> rows) {
  auto* base = static_cast<std::byte*>(all.data);
  const int64_t row_bytes = all.stride * static_cast<int64_t>(DTypeBytes(all.dtype));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<size_t>(rows[i]) == i) continue;
    std::memcpy(base + static_cast<int64_t>(i) * row_bytes, base + rows[i] * row_bytes,
                static_cast<size_t>(row_bytes));
  }
}

// Adds one row of f32 or bf16 to a sum, column by column.
void AddRowTo(const Matrix& states, int64_t row, std::span<double> sum) {
  if (states.dtype == DType::kF32) {
    const float* from = static_cast<const float*>(states.data) + row * states.stride;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(from[i]);
    return;
  }
  TANDEM_CHECK(states.dtype == DType::kBF16);
  const Bf16* from = static_cast<const Bf16*>(states.data) + row * states.stride;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(Bf16ToFloat(from[i]));
}

}  // namespace

ServingOps::ServingOps(const Model& model, OpsContext& ops, int64_t max_rows,
                       int64_t max_logit_rows)
    : model_(model),
      ops_(ops),
      plan_(PlanForward(model.family(), model.config(), model.weight_specs(), model.dtype())),
      max_rows_(max_rows),
      max_logit_rows_(max_logit_rows),
      arena_(ArenaBytes(plan_, max_rows)),
      logits_(LogitBytes(plan_, max_logit_rows)),
      rounded_(plan_.activations.size()),
      expert_scratch_(plan_.ExpertScratch(max_rows)) {
  ops.SharedScratch(static_cast<size_t>(expert_scratch_.shared));
  for (int worker = 0; worker < ops.pool().n_threads(); ++worker) {
    ops.WorkerScratch(worker, static_cast<size_t>(expert_scratch_.worker));
  }
  adapter_rows_.reserve(static_cast<size_t>(max_rows));
  lora_rows_.reserve(static_cast<size_t>(max_rows));
  runs_.reserve(static_cast<size_t>(2 * max_rows + 1));
  if (plan_.state_floats > 0) state_rows_.reserve(static_cast<size_t>(max_rows));
  kept_rows_.reserve(static_cast<size_t>(max_rows));
  head_rows_.reserve(static_cast<size_t>(max_logit_rows));
}

int64_t ServingOps::scratch_bytes() const {
  return static_cast<int64_t>(arena_.size() + logits_.size()) + expert_scratch_.shared;
}

int64_t ServingOps::ScratchBytes(const ForwardPlan& plan, int64_t max_rows,
                                 int64_t max_logit_rows) {
  return static_cast<int64_t>(ArenaBytes(plan, max_rows) + LogitBytes(plan, max_logit_rows)) +
         plan.ExpertScratch(max_rows).shared;
}

std::span<const float> ServingOps::Run(const BatchView& batch, KvCache& kv) {
  CheckBatch(batch);
  CheckBlocks(batch, kv);
  CheckStates(batch);
  batch_ = &batch;
  kv_ = &kv;
  rows_ = static_cast<int64_t>(batch.tokens.size());
  next_op_ = 0;
  next_act_ = 0;
  rounded_.assign(rounded_.size(), false);
  ListKeptRows();
  state_rows_.clear();
  for (size_t i = 0; plan_.state_floats > 0 && i < batch.slices.size(); ++i) {
    const AttentionSlice& slice = batch.slices[i];
    state_rows_.push_back({.first_row = slice.first_row,
                           .n_rows = slice.n_rows,
                           .first_position = slice.first_position,
                           .state = batch.states[i].state,
                           .saves = batch.states[i].saves});
  }
  adapter_rows_.clear();
  for (size_t i = 0; i < batch.adapters.size(); ++i) {
    const Adapter* adapter = batch.adapters[i];
    const AttentionSlice& slice = batch.slices[i];
    if (adapter == nullptr) continue;
    AdapterRows* last = adapter_rows_.empty() ? nullptr : &adapter_rows_.back();
    if (last != nullptr && last->adapter == adapter &&
        last->first_row + last->n_rows == slice.first_row) {
      last->n_rows += slice.n_rows;
    } else {
      adapter_rows_.push_back({adapter, slice.first_row, slice.n_rows});
    }
  }

  if (rows_ > 0) model_.family().forward(model_.config(), model_.weights(), *this);

  return {logits_.as<float>(),
          batch.logit_rows.size() * static_cast<size_t>(model_.config().vocab_size)};
}

Act ServingOps::NextAct() {
  ++next_op_;
  return Act{next_act_++};
}

Matrix ServingOps::At(Act x) {
  const ForwardPlan::Activation& a = plan_.activations[static_cast<size_t>(x.index)];
  // Offsets are per row, so a small step uses a small, warm part of the arena.
  const auto step_rows = static_cast<int64_t>(batch_->tokens.size());
  return {arena_.data() + a.slot.offset * step_rows, a.dtype, rows_, a.cols, a.stride};
}

const float* ServingOps::F32(Act x) { return static_cast<const float*>(At(x).data); }

Matrix ServingOps::RoundedAt(Act x) {
  const ForwardPlan::Activation& a = plan_.activations[static_cast<size_t>(x.index)];
  const auto step_rows = static_cast<int64_t>(batch_->tokens.size());
  return {arena_.data() + a.rounded.offset * step_rows, plan_.dtype, rows_, a.cols,
          a.rounded_stride};
}

ConstMatrix ServingOps::ComputeInput(Act x) {
  const auto index = static_cast<size_t>(x.index);
  if (plan_.activations[index].dtype == plan_.dtype) return At(x);
  const Matrix rounded = RoundedAt(x);
  if (!rounded_[index]) {
    RoundRows(ops_, F32(x), plan_.activations[index].stride, rounded);
    rounded_[index] = true;
  }
  return rounded;
}

void ServingOps::ListKeptRows() {
  kept_rows_.clear();
  auto logit_row = batch_->logit_rows.begin();
  const auto end = batch_->logit_rows.end();
  for (const HiddenSum& pooled : batch_->hidden_sums) {
    const int64_t after = pooled.first_row + pooled.n_rows;
    for (; logit_row != end && *logit_row < pooled.first_row; ++logit_row) {
      kept_rows_.push_back(*logit_row);
    }
    for (int64_t row = pooled.first_row; row < after; ++row) {
      kept_rows_.push_back(static_cast<int32_t>(row));
    }
    while (logit_row != end && *logit_row < after) ++logit_row;
  }
  kept_rows_.insert(kept_rows_.end(), logit_row, end);
}

void ServingOps::KeepListedRowsOnly(int32_t finished_op) {
  const std::span<const int32_t> kept = kept_rows_;
  if (static_cast<int64_t>(kept.size()) == rows_) return;
  for (int32_t i = 0; i < next_act_; ++i) {
    const ForwardPlan::Activation& a = plan_.activations[static_cast<size_t>(i)];
    if (a.last_op > finished_op) KeepRows(At(Act{i}), kept);
    if (rounded_[static_cast<size_t>(i)] && a.rounded_last_op > finished_op) {
      KeepRows(RoundedAt(Act{i}), kept);
    }
  }
  rows_ = static_cast<int64_t>(kept.size());
  KeepAdapterRows(kept);
}

Act ServingOps::Embed(const Weight& table) {
  return EmbedIds(table, batch_->tokens, WeightUse::kEmbedding);
}

Act ServingOps::EmbedPositions(const Weight& table) {
  return EmbedIds(table, batch_->positions, WeightUse::kPositions);
}

Act ServingOps::RmsNorm(Act x, const Weight& gamma, float eps) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  for (const WeightRun& run : RunsOf(gamma, nullptr, WeightUse::kNorm)) {
    const Matrix from = PartOf(At(x), run.first_row, run.n_rows);
    engine::RmsNorm(ops_, static_cast<const float*>(from.data), from.stride, run.weight->vector,
                    eps, PartOf(At(out), run.first_row, run.n_rows), nullptr);
  }
  return out;
}

Act ServingOps::RmsNormF32(Act x, const Weight& gamma, float eps) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  for (const WeightRun& run : RunsOf(gamma, nullptr, WeightUse::kNorm)) {
    const Matrix from = PartOf(At(x), run.first_row, run.n_rows);
    RmsNormRuns(ops_, static_cast<const float*>(from.data), run.weight->vector, gamma.spec->n, eps,
                PartOf(At(out), run.first_row, run.n_rows), nullptr);
  }
  return out;
}

Act ServingOps::PlainRmsNorm(Act x, int64_t length, float eps) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  engine::PlainRmsNorm(ops_, F32(x), length, eps, At(out), nullptr);
  return out;
}

Act ServingOps::SliceHeads(Act x, int64_t n_heads, int64_t first, int64_t) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  const Matrix in = At(x);
  engine::SliceHeads(ops_, F32(x), in.stride, n_heads, in.cols / n_heads, first, At(out));
  return out;
}

Act ServingOps::JoinHeads(Act a, Act b, int64_t n_heads, int64_t b_dim) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  engine::JoinHeads(ops_, F32(a), At(a).cols / n_heads, F32(b), b_dim, At(b).cols / b_dim, n_heads,
                    At(out));
  return out;
}

Act ServingOps::ScaleBy(Act x, const Weight& factor) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  const Matrix y = At(out);
  ScaleRows(ops_, F32(x), factor.vector[0], rows_ * y.stride, static_cast<float*>(y.data));
  return out;
}

Act ServingOps::LayerNorm(Act x, const Weight* gamma, const Weight* beta, float eps) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  if (gamma == nullptr) {
    engine::LayerNorm(ops_, F32(x), At(x).stride, nullptr, nullptr, eps, At(out), nullptr);
    return out;
  }
  for (const WeightRun& run : RunsOf(*gamma, beta, WeightUse::kNorm)) {
    const Matrix from = PartOf(At(x), run.first_row, run.n_rows);
    engine::LayerNorm(ops_, static_cast<const float*>(from.data), from.stride, run.weight->vector,
                      run.second == nullptr ? nullptr : run.second->vector, eps,
                      PartOf(At(out), run.first_row, run.n_rows), nullptr);
  }
  return out;
}

Act ServingOps::Linear(Act x, const Weight& w, const Weight* bias) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  const Matrix y = At(out);
  const ConstMatrix input = ComputeInput(x);
  for (const WeightRun& run : RunsOf(w, bias, WeightUse::kLinear)) {
    MatMul(ops_, PartOf(input, run.first_row, run.n_rows), run.weight->panels,
           run.second == nullptr ? nullptr : run.second->vector,
           static_cast<float*>(y.data) + run.first_row * y.stride, y.stride);
  }
  if (!adapter_rows_.empty()) {
    AddAdapters(input, w, bias, WeightUse::kLinear, static_cast<float*>(y.data), y.stride);
  }
  return out;
}

Act ServingOps::Rope(Act x, size_t table) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  // `positions` covers all rows of the batch; no family rotates after its last attention.
  TANDEM_CHECK(rows_ == static_cast<int64_t>(batch_->positions.size()));
  engine::Rope(ops_, F32(x), At(x).stride, batch_->positions, model_.ropes().at(table), At(out));
  return out;
}

// The plan gives the output its dtype.
Act ServingOps::RopeF32(Act x, size_t table) { return Rope(x, table); }

Act ServingOps::Attention(Act q, Act k, Act v, const AttentionSpec& spec, int64_t layer,
                          const Weight* sinks) {
  const int32_t op = next_op_;
  const Act out = NextAct();
  const std::span<const AttentionSlice> slices = SlicesOf(spec, layer);
  const KvLayerView kv{.keys = kv_->keys(layer),
                       .values = kv_->values(layer),
                       .key_stride_bytes = kv_->key_stride(layer),
                       .value_stride_bytes = kv_->value_stride(layer),
                       .dtype = plan_.dtype,
                       .format = kv_->shape().format};
  if (plan_.ops[static_cast<size_t>(op)].writes_keys) {
    WriteKv(ops_, spec, ComputeInput(k), ComputeInput(v), slices, kv);
  }
  engine::Attention(ops_, spec, ComputeInput(q), slices, kv, At(out), nullptr,
                    sinks == nullptr ? nullptr : sinks->vector);
  if (op == plan_.last_attention_op) KeepListedRowsOnly(op);
  return out;
}

Act ServingOps::GatedActivation(Act gate, Act up, Activation activation) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  engine::GatedActivation(ops_, F32(gate), F32(up), At(gate).stride, activation, At(out));
  return out;
}

Act ServingOps::Activate(Act x, Activation activation) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  engine::Activate(ops_, F32(x), At(x).stride, activation, At(out));
  return out;
}

Act ServingOps::Columns(Act x, int64_t first, int64_t) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  RoundRows(ops_, F32(x) + first, At(x).stride, At(out));
  return out;
}

Act ServingOps::ColumnsF32(Act x, int64_t first, int64_t count) { return Columns(x, first, count); }

Act ServingOps::Mul(Act a, Act b) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  const Matrix y = At(out);
  MultiplyRows(ops_, F32(a), F32(b), rows_ * y.stride, static_cast<float*>(y.data));
  return out;
}

Act ServingOps::Sigmoid(Act x) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  const Matrix y = At(out);
  SigmoidRows(ops_, F32(x), rows_ * y.stride, static_cast<float*>(y.data));
  return out;
}

Act ServingOps::Clamp(Act x, float limit) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  const Matrix y = At(out);
  ClampRows(ops_, F32(x), limit, rows_ * y.stride, static_cast<float*>(y.data));
  return out;
}

Act ServingOps::Route(Act logits, const Weight* selection_bias, const RouterSpec& spec) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  engine::Route(ops_, F32(logits), At(logits).stride,
                selection_bias == nullptr ? nullptr : selection_bias->vector, spec, At(out));
  return out;
}

Act ServingOps::ExpertLinear(Act x, Act routing, std::span<const Weight> experts,
                             std::span<const Weight> biases) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  const Matrix y = At(out);
  const ConstMatrix input = ComputeInput(x);
  ExpertMatMul(ops_, input, At(routing), ExpertMatricesOf(experts, biases),
               static_cast<float*>(y.data), y.stride);
  if (!adapter_rows_.empty()) AddExpertAdapters(input, At(routing), experts, y);
  return out;
}

void ServingOps::AddExpertAdapters(const ConstMatrix& x, const ConstMatrix& routing,
                                   std::span<const Weight> experts, const Matrix& y) {
  for (const AdapterRows& part : adapter_rows_) {
    const auto find = [&](int64_t expert) {
      return part.adapter->Find(experts[static_cast<size_t>(expert)].index);
    };
    AddExpertLora(ops_, x, routing, static_cast<int64_t>(experts.size()), std::cref(find),
                  part.first_row, part.n_rows, static_cast<float*>(y.data), y.stride, nullptr);
  }
}

Act ServingOps::Combine(Act y, Act routing) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  CombineExperts(ops_, F32(y), At(y).stride, At(routing), At(out));
  return out;
}

Act ServingOps::Add(Act a, Act b) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  const Matrix y = At(out);
  // Padding columns are added too and never read.
  AddRows(ops_, F32(a), F32(b), rows_ * y.stride, static_cast<float*>(y.data));
  return out;
}

Act ServingOps::Scale(Act x, float factor) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  const Matrix y = At(out);
  ScaleRows(ops_, F32(x), factor, rows_ * y.stride, static_cast<float*>(y.data));
  return out;
}

Act ServingOps::Dropout(Act x, float) { return x; }

void ServingOps::TakeHiddenSums(Act x) {
  const Matrix states = At(x);
  const int64_t hidden_dim = model_.config().hidden_dim;
  TANDEM_CHECK(states.cols == hidden_dim);
  for (const HiddenSum& pooled : batch_->hidden_sums) {
    const auto at = std::lower_bound(kept_rows_.begin(), kept_rows_.end(), pooled.first_row);
    const int64_t first = at - kept_rows_.begin();
    for (int64_t row = first; row < first + pooled.n_rows; ++row) {
      AddRowTo(states, row, pooled.sum);
    }
  }
  head_rows_.clear();
  for (const int32_t row : batch_->logit_rows) {
    const auto at = std::lower_bound(kept_rows_.begin(), kept_rows_.end(), row);
    head_rows_.push_back(static_cast<int32_t>(at - kept_rows_.begin()));
  }
  KeepRows(states, head_rows_);
  if (rounded_[static_cast<size_t>(x.index)]) KeepRows(RoundedAt(x), head_rows_);
  rows_ = static_cast<int64_t>(head_rows_.size());
  KeepAdapterRows(head_rows_);
}

void ServingOps::Logits(Act x, const Weight& head, const Weight* bias, float soft_cap) {
  if (!batch_->hidden_sums.empty()) TakeHiddenSums(x);
  if (rows_ == 0) return;
  const ConstMatrix input = ComputeInput(x);
  const int64_t vocab = head.panels.n;
  for (const WeightRun& run : RunsOf(head, bias, WeightUse::kHead)) {
    MatMul(ops_, PartOf(input, run.first_row, run.n_rows), run.weight->panels,
           run.second == nullptr ? nullptr : run.second->vector,
           logits_.as<float>() + run.first_row * vocab, vocab);
  }
  if (!adapter_rows_.empty()) {
    AddAdapters(input, head, bias, WeightUse::kHead, logits_.as<float>(), vocab);
  }
  if (soft_cap > 0) engine::SoftCap(ops_, soft_cap, rows_ * head.panels.n, logits_.as<float>());
}

}  // namespace tandem::engine
