#include "engine/model/serving_ops.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/kv/block_pool.h"
#include "engine/model/model.h"
#include "engine/ops/attention.h"
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
      rounded_(plan_.activations.size()) {
  adapter_rows_.reserve(static_cast<size_t>(max_rows));
  lora_rows_.reserve(static_cast<size_t>(max_rows));
  kept_rows_.reserve(static_cast<size_t>(max_rows));
  head_rows_.reserve(static_cast<size_t>(max_logit_rows));
}

int64_t ServingOps::scratch_bytes() const {
  return static_cast<int64_t>(arena_.size() + logits_.size());
}

int64_t ServingOps::ScratchBytes(const ForwardPlan& plan, int64_t max_rows,
                                 int64_t max_logit_rows) {
  return static_cast<int64_t>(ArenaBytes(plan, max_rows) + LogitBytes(plan, max_logit_rows));
}

std::span<const float> ServingOps::Run(const BatchView& batch, KvCache& kv) {
  CheckBatch(batch, kv);
  batch_ = &batch;
  kv_ = &kv;
  rows_ = static_cast<int64_t>(batch.tokens.size());
  next_op_ = 0;
  next_act_ = 0;
  rounded_.assign(rounded_.size(), false);
  ListKeptRows();
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

// Batches come from our own code, but a wrong row would write into another sequence's blocks and
// show up far away. Checks only the written places, which takes nanoseconds per row.
void ServingOps::CheckBatch(const BatchView& batch, const KvCache& kv) const {
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  TANDEM_CHECK(rows <= max_rows_);
  TANDEM_CHECK(batch.positions.size() == batch.tokens.size());
  TANDEM_CHECK(static_cast<int64_t>(batch.logit_rows.size()) <= max_logit_rows_);
  for (const TokenId token : batch.tokens) {
    TANDEM_CHECK(token >= 0 && token < model_.config().vocab_size);
  }
  int64_t next_row = 0;
  for (const AttentionSlice& slice : batch.slices) {
    TANDEM_CHECK(slice.first_row == next_row && slice.n_rows >= 1);
    next_row += slice.n_rows;
    TANDEM_CHECK(next_row <= rows && slice.first_position >= 0);
    const int64_t end = slice.first_position + slice.n_rows;
    TANDEM_CHECK(end <= model_.config().max_context_len);
    TANDEM_CHECK(end <= static_cast<int64_t>(slice.blocks.size()) * kTokensPerBlock);
    for (int64_t i = slice.first_position / kTokensPerBlock; i * kTokensPerBlock < end; ++i) {
      TANDEM_CHECK(slice.blocks[static_cast<size_t>(i)].value < kv.shape().n_blocks);
    }
    for (int64_t i = 0; i < slice.n_rows; ++i) {
      TANDEM_CHECK(batch.positions[static_cast<size_t>(slice.first_row + i)] ==
                   slice.first_position + i);
    }
  }
  TANDEM_CHECK(next_row == rows);
  TANDEM_CHECK(batch.adapters.empty() || batch.adapters.size() == batch.slices.size());
  for (const Adapter* adapter : batch.adapters) {
    TANDEM_CHECK(adapter == nullptr || &adapter->base() == &model_);
  }
  int64_t previous = -1;
  for (const int32_t row : batch.logit_rows) {
    TANDEM_CHECK(row > previous && row < rows);
    previous = row;
  }
  int64_t next_summed = 0;
  for (const HiddenSum& pooled : batch.hidden_sums) {
    TANDEM_CHECK(pooled.first_row >= next_summed && pooled.n_rows >= 1);
    next_summed = pooled.first_row + pooled.n_rows;
    TANDEM_CHECK(next_summed <= rows);
    TANDEM_CHECK(static_cast<int64_t>(pooled.sum.size()) == model_.config().hidden_dim);
  }
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

  size_t n_left = 0;
  auto row = kept.begin();
  for (const AdapterRows& part : adapter_rows_) {
    row = std::lower_bound(row, kept.end(), part.first_row);
    const auto end = std::lower_bound(row, kept.end(), part.first_row + part.n_rows);
    if (end != row) adapter_rows_[n_left++] = {part.adapter, row - kept.begin(), end - row};
    row = end;
  }
  adapter_rows_.resize(n_left);
}

void ServingOps::AddAdapters(const ConstMatrix& x, int32_t weight, float* y, int64_t ldy) {
  lora_rows_.clear();
  for (const AdapterRows& part : adapter_rows_) {
    const LoraMatrices* lora = part.adapter->Find(weight);
    if (lora != nullptr) lora_rows_.push_back({lora, part.first_row, part.n_rows});
  }
  if (!lora_rows_.empty()) AddLora(ops_, x, lora_rows_, y, ldy, nullptr);
}

Act ServingOps::Embed(const Weight& table) {
  const Act out = NextAct();
  const Matrix y = At(out);
  GatherRows(ops_, table.panels, batch_->tokens, static_cast<float*>(y.data), y.stride);
  return out;
}

Act ServingOps::EmbedPositions(const Weight& table) {
  const Act out = NextAct();
  const Matrix y = At(out);
  GatherRows(ops_, table.panels, batch_->positions, static_cast<float*>(y.data), y.stride);
  return out;
}

Act ServingOps::RmsNorm(Act x, const Weight& gamma, float eps) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  engine::RmsNorm(ops_, F32(x), At(x).stride, gamma.vector, eps, At(out), nullptr);
  return out;
}

Act ServingOps::RmsNormF32(Act x, const Weight& gamma, float eps) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  RmsNormRuns(ops_, F32(x), gamma.vector, gamma.spec->n, eps, At(out), nullptr);
  return out;
}

Act ServingOps::LayerNorm(Act x, const Weight& gamma, const Weight& beta, float eps) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  engine::LayerNorm(ops_, F32(x), At(x).stride, gamma.vector, beta.vector, eps, At(out), nullptr);
  return out;
}

Act ServingOps::Linear(Act x, const Weight& w, const Weight* bias) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  const Matrix y = At(out);
  const ConstMatrix input = ComputeInput(x);
  MatMul(ops_, input, w.panels, bias == nullptr ? nullptr : bias->vector,
         static_cast<float*>(y.data), y.stride);
  if (!adapter_rows_.empty()) {
    AddAdapters(input, w.index, static_cast<float*>(y.data), y.stride);
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

Act ServingOps::Attention(Act q, Act k, Act v, const AttentionSpec& spec, int64_t layer) {
  const int32_t op = next_op_;
  const Act out = NextAct();
  const KvLayerView kv{.keys = kv_->keys(layer),
                       .values = kv_->values(layer),
                       .block_stride_bytes = kv_->block_stride_bytes(),
                       .dtype = plan_.dtype};
  WriteKv(ops_, spec, ComputeInput(k), ComputeInput(v), batch_->slices, kv);
  engine::Attention(ops_, spec, ComputeInput(q), batch_->slices, kv, At(out), nullptr);
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
}

void ServingOps::Logits(Act x, const Weight& head, const Weight* bias, float soft_cap) {
  if (!batch_->hidden_sums.empty()) TakeHiddenSums(x);
  if (rows_ == 0) return;
  MatMul(ops_, ComputeInput(x), head.panels, bias == nullptr ? nullptr : bias->vector,
         logits_.as<float>(), head.panels.n);
  if (soft_cap > 0) SoftCap(ops_, soft_cap, rows_ * head.panels.n, logits_.as<float>());
}

}  // namespace tandem::engine
