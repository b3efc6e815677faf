#include "training/program/tensor_region.h"

#include <algorithm>
#include <string>

#include "engine/base/check.h"

namespace tandem::training {
namespace {

using Axis = WeightSplit::Axis;

// Ops that compute each head, or each column of a feed-forward layer, by itself.
bool ComputesApart(OpKind op) {
  switch (op) {
    case OpKind::kRound:
    case OpKind::kRmsNorm:
    case OpKind::kRope:
    case OpKind::kGatedActivation:
    case OpKind::kActivate:
    case OpKind::kColumns:
    case OpKind::kAdd:
    case OpKind::kMul:
    case OpKind::kSigmoid:
    case OpKind::kClamp:
    case OpKind::kScale:
    case OpKind::kSliceHeads:
    case OpKind::kJoinHeads:
    case OpKind::kDropout:
    case OpKind::kGate:
    case OpKind::kSoftCap:
      return true;
    default:
      return false;
  }
}

}  // namespace

TensorRegion::TensorRegion(Program* program, const engine::ModelConfig& part) : p_(program) {
  const auto add = [this](const engine::AttentionSpec& spec) {
    head_dims_.push_back(spec.head_dim);
    head_dims_.push_back(spec.value_dim());
  };
  add(part.attention);
  for (const engine::AttentionSpec& layer : part.layer_attention) add(layer);
}

Axis TensorRegion::AxisOf(int32_t weight) const {
  return is_split() ? p_->tensor.weights[static_cast<size_t>(weight)].axis : Axis::kWhole;
}

bool TensorRegion::IsPart(int32_t value) const {
  const auto v = static_cast<size_t>(value);
  return v < is_part_.size() && is_part_[v];
}

void TensorRegion::Mark(int32_t value, bool is_part) {
  is_part_.resize(p_->values.size(), false);
  is_part_[static_cast<size_t>(value)] = is_part;
}

void TensorRegion::Refuse(const Node& node, const std::string& why) const {
  std::string what = std::string("op ") + Describe(node.op).name + " " + why;
  if (!node.weights.empty()) {
    what += " (weight " + p_->weight_specs[static_cast<size_t>(node.weights[0])].name + ")";
  }
  RefuseTensorSplit(p_->tensor.place, p_->family, what);
}

void TensorRegion::Use(int32_t weight, bool for_parts) {
  const auto [found, is_new] = used_for_parts_.emplace(weight, for_parts);
  const TensorPlace& place = p_->tensor.place;
  if (!is_new && found->second != for_parts && !place.divides_rows) {
    RefuseTensorSplit(place, p_->family,
                      "weight " + p_->weight_specs[static_cast<size_t>(weight)].name +
                          " serves parts and whole values");
  }
  p_->tensor.weights[static_cast<size_t>(weight)].sums_gradient = for_parts || place.divides_rows;
}

void TensorRegion::TakeLinear(Node* node) {
  const Axis axis = AxisOf(node->weights[0]);
  const bool from_parts = IsPart(node->inputs[0]);
  if (from_parts != (axis != Axis::kWhole)) {
    Refuse(*node, from_parts ? "reads parts with a whole weight" : "reads whole rows");
  }
  for (size_t i = 1; i < node->weights.size(); ++i) {
    if (AxisOf(node->weights[i]) != axis) Refuse(*node, "has a bias of another kind");
    if (axis == Axis::kWhole) Use(node->weights[i], false);
  }
  if (axis == Axis::kWhole) Use(node->weights[0], false);
  if (node->lora.a >= 0 && axis == Axis::kWhole) {
    Use(node->lora.a, false);
    Use(node->lora.b, false);
  }
  // A rank's A . x or B . h is a part of the sum.
  if (node->lora.a >= 0 && axis != Axis::kWhole) {
    Use(axis == Axis::kOutputs ? node->lora.a : node->lora.b, true);
  }
  node->is_part = axis == Axis::kInputs;
  Mark(node->outputs[0], axis == Axis::kOutputs);
}

void TensorRegion::TakeAttention(const Node& node) {
  const engine::AttentionSpec& spec = node.attention;
  for (const int32_t v : node.inputs) {
    if (!IsPart(v)) Refuse(node, "has heads that are not shared");
  }
  TANDEM_CHECK(p_->values[node.inputs[0]].cols == spec.n_heads * spec.head_dim);
  for (const int32_t sinks : node.weights) {
    if (AxisOf(sinks) != Axis::kOutputs) Refuse(node, "has sinks of all heads");
  }
  Mark(node.outputs[0], true);
}

// As TakeLinear for the matrices of all experts.
void TensorRegion::TakeExperts(Node* node) {
  const Axis axis = AxisOf(node->weights[0]);
  if (axis == Axis::kWhole || !IsPart(node->inputs[0])) {
    Refuse(*node, "has experts that are not shared");
  }
  for (const int32_t weight : node->weights) {
    const bool is_bias = p_->weight_specs[static_cast<size_t>(weight)].k == 1;
    if (is_bias && axis == Axis::kInputs) {
      Use(weight, true);
    } else if (AxisOf(weight) != axis) {
      Refuse(*node, "has weights of several kinds");
    }
  }
  for (const LoraNode& lora : node->experts.lora) {
    if (lora.a >= 0) Use(axis == Axis::kOutputs ? lora.a : lora.b, true);
  }
  node->is_part = axis == Axis::kInputs;
  Mark(node->outputs[0], true);
}

// Parts of sums need a spread routing, because its gradient is a sum over ranks.
void TensorRegion::TakeCombine(Node* node) {
  if (IsPart(node->inputs[0]) != IsPart(node->inputs[1])) {
    Refuse(*node, "joins parts with whole values");
  }
  Mark(node->outputs[0], IsPart(node->inputs[0]));
}

// When ranks divide the rows, every rank routes all of them by spread logits.
bool TensorRegion::RoutesAllRows(OpKind op) const {
  return p_->tensor.place.divides_rows && (op == OpKind::kRoute || op == OpKind::kScaleExperts);
}

void TensorRegion::CheckNorm(const Node& node) const {
  const bool of_heads = !node.weights.empty() || std::find(head_dims_.begin(), head_dims_.end(),
                                                           node.length) != head_dims_.end();
  if (!of_heads) Refuse(node, "norms all heads together");
}

void TensorRegion::TakeOther(Node* node) {
  const auto is_part = [this](int32_t v) { return IsPart(v); };
  const bool any = std::any_of(node->inputs.begin(), node->inputs.end(), is_part);
  for (const int32_t weight : node->weights) {
    if (AxisOf(weight) != Axis::kWhole) Refuse(*node, "needs all heads or columns");
    Use(weight, any);
  }
  if (any) {
    if (!std::all_of(node->inputs.begin(), node->inputs.end(), is_part)) {
      Refuse(*node, "joins parts with whole values");
    }
    if (!ComputesApart(node->op) && !RoutesAllRows(node->op)) {
      Refuse(*node, "needs all heads or columns");
    }
    if (node->op == OpKind::kRmsNorm) CheckNorm(*node);
  }
  node->is_part = any;
  for (const int32_t v : node->outputs) Mark(v, any);
}

void TensorRegion::Take(Node* node) {
  switch (node->op) {
    case OpKind::kSpread:
      if (IsPart(node->inputs[0])) Refuse(*node, "reads parts");
      return Mark(node->outputs[0], true);
    case OpKind::kSumRanks:
      for (const int32_t bias : node->weights) Use(bias, false);
      return Mark(node->outputs[0], false);
    case OpKind::kLinear:
      return TakeLinear(node);
    case OpKind::kAttention:
      return TakeAttention(*node);
    case OpKind::kExpertLinear:
      return TakeExperts(node);
    case OpKind::kCombine:
      return TakeCombine(node);
    default:
      return TakeOther(node);
  }
}

namespace {

// Lengths of the columns into which all readers of a value cut it; empty when none does.
std::vector<int64_t> ColumnsOf(const Program& program, int32_t value) {
  std::vector<std::pair<int64_t, int64_t>> columns;  // first, count
  bool others = false;
  for (const Node& node : program.nodes) {
    if (std::find(node.inputs.begin(), node.inputs.end(), value) == node.inputs.end()) continue;
    if (node.op == OpKind::kColumns) {
      columns.emplace_back(node.first, program.values[node.outputs[0]].cols);
    } else {
      others = true;
    }
  }
  if (columns.empty()) return {};
  std::sort(columns.begin(), columns.end());
  columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
  std::vector<int64_t> runs;
  int64_t end = 0;
  for (const auto& [first, count] : columns) {
    others = others || first != end;
    end = first + count;
    runs.push_back(count);
  }
  if (others || end != program.values[value].cols) {
    RefuseTensorSplit(program.tensor.place, program.family,
                      "it cuts a product into columns that overlap");
  }
  return runs;
}

}  // namespace

void FindRuns(Program* program) {
  for (const Node& node : program->nodes) {
    if (node.op != OpKind::kLinear) continue;
    if (program->tensor.weights[static_cast<size_t>(node.weights[0])].axis != Axis::kOutputs) {
      continue;
    }
    const std::vector<int64_t> runs = ColumnsOf(*program, node.outputs[0]);
    if (runs.empty()) continue;
    for (const int32_t weight : node.weights) {
      program->tensor.weights[static_cast<size_t>(weight)].runs = runs;
    }
    if (node.lora.b >= 0) program->tensor.weights[static_cast<size_t>(node.lora.b)].runs = runs;
  }
}

}  // namespace tandem::training
