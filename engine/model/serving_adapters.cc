// The parts of ServingOps that adapters change: which rows use which weights, and their low-rank
// products.

#include <algorithm>

#include "engine/model/matrix_part.h"
#include "engine/model/model.h"
#include "engine/model/serving_ops.h"

namespace tandem::engine {
namespace {

const LoraMatrices* FindFor(const Adapter& adapter, int32_t weight, WeightUse use) {
  return use == WeightUse::kHead ? adapter.FindHead() : adapter.Find(weight);
}

}  // namespace

std::span<const ServingOps::WeightRun> ServingOps::RunsOf(const Weight& weight,
                                                          const Weight* second, WeightUse use) {
  runs_.clear();
  int64_t next = 0;
  const auto add_base_until = [&](int64_t row) {
    if (row > next) runs_.push_back({&weight, second, next, row - next});
  };
  const bool as_head = use == WeightUse::kHead;
  for (const AdapterRows& part : adapter_rows_) {
    const Adapter& adapter = *part.adapter;
    const Weight* own = adapter.Own(weight.index, as_head);
    const Weight* own_second = second == nullptr ? nullptr : adapter.Own(second->index, as_head);
    const LoraMatrices* lora = use == WeightUse::kLinear ? adapter.Find(weight.index) : nullptr;
    const bool is_dora = lora != nullptr && lora->factors != nullptr;
    if (own == nullptr && own_second == nullptr && !is_dora) continue;
    add_base_until(part.first_row);
    const Weight* bias = own_second != nullptr ? own_second : second;
    runs_.push_back(
        {own != nullptr ? own : &weight, is_dora ? nullptr : bias, part.first_row, part.n_rows});
    next = part.first_row + part.n_rows;
  }
  add_base_until(rows_);
  return runs_;
}

void ServingOps::AddAdapters(const ConstMatrix& x, const Weight& weight, const Weight* bias,
                             WeightUse use, float* y, int64_t ldy) {
  lora_rows_.clear();
  for (const AdapterRows& part : adapter_rows_) {
    const LoraMatrices* lora = FindFor(*part.adapter, weight.index, use);
    if (lora == nullptr) continue;
    const Weight* added = lora->factors == nullptr ? nullptr : bias;
    if (added != nullptr) {
      const Weight* own = part.adapter->Own(bias->index, false);
      if (own != nullptr) added = own;
    }
    lora_rows_.push_back(
        {lora, part.first_row, part.n_rows, added == nullptr ? nullptr : added->vector});
  }
  if (!lora_rows_.empty()) AddLora(ops_, x, lora_rows_, y, ldy, nullptr);
}

Act ServingOps::EmbedIds(const Weight& table, std::span<const int32_t> ids, WeightUse use) {
  const Act out = NextAct();
  const Matrix y = At(out);
  for (const WeightRun& run : RunsOf(table, nullptr, use)) {
    GatherRows(ops_, run.weight->panels,
               ids.subspan(static_cast<size_t>(run.first_row), static_cast<size_t>(run.n_rows)),
               static_cast<float*>(y.data) + run.first_row * y.stride, y.stride);
  }
  if (use == WeightUse::kEmbedding) AddTables(table.index, y);
  return out;
}

void ServingOps::AddTables(int32_t table, const Matrix& y) {
  for (const AdapterRows& part : adapter_rows_) {
    const LoraMatrices* lora = part.adapter->FindEmbedding(table);
    if (lora == nullptr) continue;
    AddEmbeddingLora(ops_, *lora,
                     batch_->tokens.subspan(static_cast<size_t>(part.first_row),
                                            static_cast<size_t>(part.n_rows)),
                     static_cast<float*>(y.data) + part.first_row * y.stride, y.stride, nullptr);
  }
}

void ServingOps::KeepAdapterRows(std::span<const int32_t> kept) {
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

}  // namespace tandem::engine
