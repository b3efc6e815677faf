// The part of Recorder that adds nodes, values and buffers to the program.

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "training/program/recorder.h"

namespace tandem::training {
namespace {

using engine::Act;
using engine::DType;
using engine::Weight;

}  // namespace

int32_t Recorder::Spread(int32_t x) {
  if (const auto it = spread_.find(x); it != spread_.end()) return it->second;
  Node node(OpKind::kSpread);
  node.inputs = {x};
  const Act y = Emit(std::move(node), p_->values[x].dtype, Cols(Act{x}));
  spread_[x] = y.index;
  return y.index;
}

bool Recorder::Divides(const Node& node) const {
  if (!p_->tensor.place.divides_rows || node.op == OpKind::kSpread) return false;
  return node.op == OpKind::kSumRanks ||
         std::all_of(node.inputs.begin(), node.inputs.end(),
                     [&](int32_t v) { return static_cast<bool>(p_->values[v].divided); });
}

Act Recorder::SumOverRanks(Act y, const Weight* bias) {
  Node node(OpKind::kSumRanks);
  node.inputs = {F32(y)};
  if (bias != nullptr) node.weights = {bias->index};
  return Emit(std::move(node), DType::kF32, Cols(y));
}

int32_t Recorder::F32(Act x) const {
  TANDEM_CHECK(p_->values[x.index].dtype == DType::kF32);
  return x.index;
}

int32_t Recorder::Rounded(Act x) {
  if (p_->values[x.index].dtype == p_->dtype) return x.index;
  if (const auto it = rounded_.find(x.index); it != rounded_.end()) return it->second;
  Node node(OpKind::kRound);
  node.inputs = {x.index};
  const Act y = Emit(std::move(node), p_->dtype, Cols(x));
  rounded_[x.index] = y.index;
  return y.index;
}

int32_t Recorder::NewBuffer(std::string role, int64_t bytes) {
  Buffer buffer;
  buffer.role = std::move(role);
  buffer.bytes = bytes;
  p_->buffers.push_back(std::move(buffer));
  return static_cast<int32_t>(p_->buffers.size()) - 1;
}

int32_t Recorder::RoundedGradientScratch(int64_t rows, int64_t cols) {
  if (p_->dtype == DType::kF32) return -1;
  return NewBuffer("rounded dy", rows * engine::RowStride(p_->dtype, cols) *
                                     static_cast<int64_t>(engine::DTypeBytes(p_->dtype)));
}

Act Recorder::Emit(Node node, DType dtype, int64_t cols) {
  Value value;
  value.dtype = dtype;
  value.cols = cols;
  value.stride = engine::RowStride(dtype, cols);
  value.divided = Divides(node);
  node.divided = value.divided && node.op != OpKind::kSumRanks;
  TANDEM_CHECK(dtype != DType::kF32 || value.stride == cols);
  const auto index = static_cast<int32_t>(p_->values.size());
  value.buffer = NewBuffer(
      "value " + std::to_string(index),
      RowsOf(*p_, value) * value.stride * static_cast<int64_t>(engine::DTypeBytes(dtype)));
  value.producer = static_cast<int32_t>(p_->nodes.size());
  node.outputs = {index};
  node.passing = passing_;
  if (node.op == OpKind::kSpread || node.op == OpKind::kSumRanks) ++passing_;
  p_->values.push_back(value);
  if (region_.is_split()) region_.Take(&node);
  p_->nodes.push_back(std::move(node));
  return Act{index};
}

}  // namespace tandem::training
