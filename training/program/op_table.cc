#include <algorithm>
#include <array>

#include "engine/base/check.h"
#include "training/ops/expert_lora.h"
#include "training/ops/experts.h"
#include "training/program/program.h"

namespace tandem::training {
namespace {

int64_t NoFlops(const Program&, const Node&) { return 0; }

int64_t MatMulFlops(const Program& p, const Node& node) {
  const engine::WeightSpec& w = p.weight_specs[node.weights[0]];
  return 2 * RowsOf(p, node) * w.n * w.k;
}

// FLOPs of A, or of B.
int64_t LoraFlops(const Program& p, const Node& node, int32_t weight) {
  if (weight < 0) return 0;
  const engine::WeightSpec& w = p.weight_specs[weight];
  return 2 * RowsOf(p, node) * w.n * w.k;
}

int64_t LinearFlops(const Program& p, const Node& node) {
  return MatMulFlops(p, node) + LoraFlops(p, node, node.lora.a) + LoraFlops(p, node, node.lora.b);
}

// dX if the input needs it, dW if the weight is trained; for an adapter always dA, dB and dh; for
// DoRA also the product again.
int64_t LinearBackwardFlops(const Program& p, const Node& node) {
  const int64_t once = MatMulFlops(p, node);
  const int64_t a = LoraFlops(p, node, node.lora.a);
  const int64_t b = LoraFlops(p, node, node.lora.b);
  return (p.values[node.inputs[0]].needs_gradient ? once + a : 0) +
         (p.trained[node.weights[0]] ? once : 0) + a + 2 * b +
         (node.lora.factors >= 0 ? once + b : 0);
}

// A look-up is no product; B of its adapter is one.
int64_t EmbedFlops(const Program& p, const Node& node) { return LoraFlops(p, node, node.lora.b); }
int64_t EmbedBackwardFlops(const Program& p, const Node& node) {
  return 2 * LoraFlops(p, node, node.lora.b);
}

// MaxText's count of causal attention: scores and P.V over half of the square, per head.
int64_t AttentionFlops(const Program& p, const Node& node) {
  const engine::AttentionSpec& a = node.attention;
  const int64_t length = p.row_length;
  const int64_t width = a.n_heads * (a.head_dim + a.value_dim());  // of scores and of P.V
  if (a.chunk > 0 && a.chunk < length) return p.rows * a.chunk * width;
  if (a.window == 0 || a.window >= length) return p.rows * length * width;
  return 2 * (p.rows / length) * (length * a.window - a.window * a.window / 2) * width;
}

int64_t AttentionBackwardFlops(const Program& p, const Node& node) {
  return 2 * AttentionFlops(p, node);
}

int64_t ConvFlops(const Program& p, const Node& node) {
  return 2 * p.rows * node.conv.channels * node.conv.kernel;
}
int64_t TwiceConvFlops(const Program& p, const Node& node) { return 2 * ConvFlops(p, node); }

// Decay, correction, update and output of the state, per row.
int64_t DeltaFlops(const Program& p, const Node& node) {
  return 7 * p.rows * node.delta.state_floats();
}
int64_t TwiceDeltaFlops(const Program& p, const Node& node) { return 2 * DeltaFlops(p, node); }

int64_t ScanFlops(const Program& p, const Node& node) {
  return 5 * p.rows * node.scan.state_floats();
}
int64_t TwiceScanFlops(const Program& p, const Node& node) { return 2 * ScanFlops(p, node); }

// The slots of all rows: every row multiplies with top_k experts.
int64_t ExpertFlops(const Program& p, const Node& node) {
  const engine::WeightSpec& w = p.weight_specs[node.weights[0]];
  return 2 * p.rows * node.experts.top_k * w.n * w.k;
}

// FLOPs of the experts' A, or of B, if every expert has its share of the slots.
int64_t ExpertLoraFlops(const Program& p, const Node& node, int32_t LoraNode::*matrix) {
  int64_t flops = 0;
  for (const LoraNode& lora : node.experts.lora) flops += LoraFlops(p, node, lora.*matrix);
  return flops * node.experts.top_k / std::max<int64_t>(1, node.experts.n_experts);
}

int64_t ExpertLinearFlops(const Program& p, const Node& node) {
  return ExpertFlops(p, node) + ExpertLoraFlops(p, node, &LoraNode::a) +
         ExpertLoraFlops(p, node, &LoraNode::b);
}

bool TrainsExperts(const Program& p, const Node& node) {
  const auto end = node.weights.begin() + node.experts.n_experts;
  return std::any_of(node.weights.begin(), end,
                     [&](int32_t w) { return static_cast<bool>(p.trained[w]); });
}

int64_t ExpertLinearBackwardFlops(const Program& p, const Node& node) {
  const int64_t once = ExpertFlops(p, node);
  const int64_t a = ExpertLoraFlops(p, node, &LoraNode::a);
  const int64_t b = ExpertLoraFlops(p, node, &LoraNode::b);
  return (p.values[node.inputs[0]].needs_gradient ? once + a : 0) +
         (TrainsExperts(p, node) ? once : 0) + a + 2 * b;
}

// In the order of OpKind. Columns: name, reads inputs, reads outputs, can overwrite, FLOPs.
constexpr std::array<OpDescription, kOpKinds> kOps = {{
    {"embed", false, false, false, EmbedFlops, EmbedBackwardFlops},
    {"embed_positions", false, false, false, NoFlops, NoFlops},
    {"rms_norm", true, false, false, NoFlops, NoFlops},
    {"layer_norm", true, false, false, NoFlops, NoFlops},
    {"round", false, false, false, NoFlops, NoFlops},
    {"linear", true, false, true, LinearFlops, LinearBackwardFlops},
    {"rope", false, false, false, NoFlops, NoFlops},
    {"attention", true, true, false, AttentionFlops, AttentionBackwardFlops},
    {"gated_activation", true, false, false, NoFlops, NoFlops},
    {"activate", true, false, false, NoFlops, NoFlops},
    {"columns", false, false, false, NoFlops, NoFlops},
    {"add", false, false, true, NoFlops, NoFlops},
    {"mul", true, false, false, NoFlops, NoFlops},
    {"sigmoid", false, true, false, NoFlops, NoFlops},
    {"clamp", true, false, false, NoFlops, NoFlops},
    {"scale", false, false, false, NoFlops, NoFlops},
    {"slice_heads", false, false, false, NoFlops, NoFlops},
    {"join_heads", false, false, false, NoFlops, NoFlops},
    {"dropout", false, false, true, NoFlops, NoFlops},
    {"route", true, true, false, NoFlops, NoFlops},
    {"expert_linear", true, false, true, ExpertLinearFlops, ExpertLinearBackwardFlops},
    {"combine", true, false, true, NoFlops, NoFlops},
    {"causal_conv", true, false, false, ConvFlops, TwiceConvFlops},
    {"gated_delta", true, false, false, DeltaFlops, TwiceDeltaFlops},
    {"selective_scan", true, false, false, ScanFlops, TwiceScanFlops},
    {"gate", true, false, false, NoFlops, NoFlops},
    {"scale_experts", true, false, false, NoFlops, NoFlops},
    {"mix", true, false, false, NoFlops, NoFlops},
    {"match_magnitude", true, false, false, NoFlops, NoFlops},
    {"above_cut", true, false, false, NoFlops, NoFlops},
    {"scale_columns", true, false, false, NoFlops, NoFlops},
    {"soft_cap", false, true, false, NoFlops, NoFlops},
    {"spread", false, false, true, NoFlops, NoFlops},
    {"sum_ranks", false, false, true, NoFlops, NoFlops},
    // Forward and backward are one pass over the vocabulary (training/ops/cross_entropy.h).
    {"cross_entropy", false, false, true, LinearFlops, LinearBackwardFlops},
}};

}  // namespace

const OpDescription& Describe(OpKind op) { return kOps[static_cast<size_t>(op)]; }

bool MixesRows(OpKind op) {
  return op == OpKind::kAttention || op == OpKind::kCausalConv || op == OpKind::kGatedDelta ||
         op == OpKind::kSelectiveScan;
}

bool ReadsInputBackward(const Program& program, const Node& node, size_t input) {
  if (!Describe(node.op).reads_inputs_backward) return false;
  switch (node.op) {
    case OpKind::kActivate:
      return node.save == ActivationSave::kPlain;
    case OpKind::kLinear:
      return node.lora.a >= 0 || program.trained[node.weights[0]];
    case OpKind::kExpertLinear:
      return input == 1 || !node.experts.lora.empty() || TrainsExperts(program, node);
    case OpKind::kCombine:  // d(weight) = dot(y, dout)
      return input == 1 || program.values[node.inputs[1]].needs_gradient;
    default:
      return true;
  }
}

int64_t ExpertBackwardBytes(const Program& program, const Node& node, int64_t rows) {
  const engine::WeightSpec& w = program.weight_specs[node.weights[0]];
  const ExpertsNode& e = node.experts;
  const int64_t own = ExpertGradientScratch(program.dtype, rows, e.top_k, e.n_experts, w.n, w.k);
  if (e.lora.empty()) return own;
  return std::max(own, ExpertLoraGradientScratch(program.dtype, rows, e.top_k, e.n_experts, w.n,
                                                 w.k, e.lora_rank));
}

int64_t ExpertDropoutBytes(engine::DType dtype, int64_t cols) {
  const auto width = static_cast<int64_t>(engine::DTypeBytes(dtype));
  return RoundUp<int64_t>(engine::RowStride(dtype, cols) * width, 64) +
         cols * static_cast<int64_t>(sizeof(float));
}

bool PassesGradient(const Node& node, size_t input) {
  return node.op != OpKind::kExpertLinear || input == 0;
}

int64_t Program::forward_flops() const {
  int64_t flops = 0;
  for (const Node& node : nodes) flops += Describe(node.op).forward_flops(*this, node);
  return flops;
}

int64_t Program::training_flops() const {
  int64_t flops = forward_flops() + Describe(nodes.back().op).backward_flops(*this, nodes.back());
  for (const BackwardStep& step : backward) {
    const Node& node = nodes[step.node];
    if (!step.remake) flops += Describe(node.op).backward_flops(*this, node);
  }
  return flops;
}

int64_t Program::recompute_flops() const {
  int64_t flops = 0;
  for (const BackwardStep& step : backward) {
    const Node& node = nodes[step.node];
    if (step.remake) flops += Describe(node.op).forward_flops(*this, node);
  }
  if (head_twice) flops += Describe(nodes.back().op).forward_flops(*this, nodes.back());
  return flops;
}

}  // namespace tandem::training
