// The part of Recorder that gives nodes their adapters.

#include <algorithm>
#include <span>
#include <vector>

#include "training/ops/experts.h"
#include "training/program/recorder.h"

namespace tandem::training {
namespace {

using engine::Weight;

}  // namespace

void Recorder::PlanAdapters(const std::vector<LoraTarget>& targets, const RecordOptions& options) {
  int64_t n_trained = 0;
  int64_t n_factors = 0;
  for (const LoraTarget& target : targets) {
    n_trained += LoraSpecCount(target);
    n_factors += target.form == LoraForm::kDora ? 1 : 0;
  }
  auto next = static_cast<int32_t>(static_cast<int64_t>(p_->weight_specs.size()) - n_trained);
  auto factors = static_cast<int32_t>(next - n_factors);
  for (const LoraTarget& target : targets) {
    if (target.form == LoraForm::kWhole) {
      own_[target.weight] = next++;
      continue;
    }
    if (target.form == LoraForm::kWholeHead) {
      own_head_ = next++;
      continue;
    }
    LoraNode& lora = target.form == LoraForm::kHead ? head_lora_ : lora_[target.weight];
    lora.a = next++;
    lora.b = next++;
    lora.scale = target.scale;
    const bool drops = target.form == LoraForm::kLinear || target.form == LoraForm::kDora;
    if (drops) lora.rate = options.lora_dropout;
    if (target.form != LoraForm::kDora) continue;
    lora.magnitude = next++;
    lora.factors = factors++;
  }
}

int32_t Recorder::Index(const Weight& w) const {
  const auto own = own_.find(w.index);
  return own == own_.end() ? w.index : own->second;
}

void Recorder::AddAdapter(const LoraNode& lora, Node* node) {
  const auto rounded = [&](int64_t cols) {
    return engine::RowStride(p_->dtype, cols) * static_cast<int64_t>(engine::DTypeBytes(p_->dtype));
  };
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  node->lora = lora;
  const int64_t rank = p_->weight_specs[lora.a].n;
  const int64_t inputs = p_->weight_specs[lora.a].k;
  const int64_t rows = Rows(node->inputs[0]);
  node->saved = NewBuffer("lora h", rows * rounded(rank));
  node->lora.backward_scratch = NewBuffer("lora dh", rows * (rank * kFloat + rounded(rank)));
  if (lora.factors >= 0) {
    node->lora.dora_scratch = NewBuffer("dora product", rows * p_->weight_specs[lora.b].n * kFloat);
  }
  if (lora.rate == 0) return;
  node->lora.forward_scratch = NewBuffer("lora dropped x", rows * rounded(inputs));
  node->lora.dropout_scratch =
      NewBuffer("lora dropped x, dx", rows * std::max(inputs * kFloat, rounded(inputs)));
}

void Recorder::AddTableAdapter(const LoraNode& lora, int64_t cols, Node* node) {
  node->lora = lora;
  const int64_t rank = p_->weight_specs[lora.a].k;
  const int64_t stride = engine::RowStride(p_->dtype, rank);
  node->saved =
      NewBuffer("lora h", p_->rows * stride * static_cast<int64_t>(engine::DTypeBytes(p_->dtype)));
  node->backward_scratch = RoundedGradientScratch(p_->rows, cols);
  node->lora.backward_scratch =
      NewBuffer("lora dh", p_->rows * rank * static_cast<int64_t>(sizeof(float)));
}

void Recorder::AddExpertAdapters(std::span<const Weight> experts, int64_t input_cols, Node* node) {
  ExpertsNode& into = node->experts;
  for (size_t e = 0; e < experts.size(); ++e) {
    const auto found = lora_.find(experts[e].index);
    if (found == lora_.end()) continue;
    into.lora.resize(experts.size());
    into.lora[e] = found->second;
    into.lora_rank = std::max(into.lora_rank, p_->weight_specs[found->second.a].n);
    node->lora.rate = found->second.rate;
  }
  if (into.lora.empty()) return;
  const auto width = static_cast<int64_t>(engine::DTypeBytes(p_->dtype));
  node->saved = NewBuffer(
      "lora h", p_->rows * into.top_k * engine::RowStride(p_->dtype, into.lora_rank) * width);
  if (node->lora.rate == 0) return;
  const int64_t dropped = engine::RowStride(p_->dtype, input_cols) * width;
  node->lora.forward_scratch = NewBuffer("lora dropped x", p_->rows * dropped);
  node->lora.dropout_scratch =
      NewBuffer("lora dropped x, dx", p_->rows * ExpertDropoutBytes(p_->dtype, input_cols));
}

}  // namespace tandem::training
