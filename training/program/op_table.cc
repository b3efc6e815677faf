#include <array>

#include "training/program/program.h"

namespace tandem::training {
namespace {

int64_t NoFlops(const Program&, const Node&) { return 0; }

int64_t MatMulFlops(const Program& p, const Node& node) {
  const engine::WeightSpec& w = p.weight_specs[node.weights[0]];
  return 2 * p.rows * w.n * w.k;
}

// FLOPs of A, or of B.
int64_t LoraFlops(const Program& p, int32_t weight) {
  if (weight < 0) return 0;
  const engine::WeightSpec& w = p.weight_specs[weight];
  return 2 * p.rows * w.n * w.k;
}

int64_t LinearFlops(const Program& p, const Node& node) {
  return MatMulFlops(p, node) + LoraFlops(p, node.lora.a) + LoraFlops(p, node.lora.b);
}

// dX if the input needs it, dW if the weight is trained; for an adapter always dA, dB and dh.
int64_t LinearBackwardFlops(const Program& p, const Node& node) {
  const int64_t once = MatMulFlops(p, node);
  const int64_t a = LoraFlops(p, node.lora.a);
  const int64_t b = LoraFlops(p, node.lora.b);
  return (p.values[node.inputs[0]].needs_gradient ? once + a : 0) +
         (p.trained[node.weights[0]] ? once : 0) + a + 2 * b;
}

// MaxText's count of causal attention: scores and P.V over half of the square, per head.
int64_t AttentionFlops(const Program& p, const Node& node) {
  const engine::AttentionSpec& a = node.attention;
  const int64_t length = p.row_length;
  if (a.window == 0 || a.window >= length) {
    return 2 * p.rows * length * a.n_heads * a.head_dim;
  }
  return 4 * (p.rows / length) * (length * a.window - a.window * a.window / 2) * a.n_heads *
         a.head_dim;
}

int64_t AttentionBackwardFlops(const Program& p, const Node& node) {
  return 2 * AttentionFlops(p, node);
}

// In the order of OpKind. Columns: name, reads inputs, reads outputs, can overwrite, FLOPs.
constexpr std::array<OpDescription, 15> kOps = {{
    {"embed", false, false, false, NoFlops, NoFlops},
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
    {"scale", false, false, false, NoFlops, NoFlops},
    {"dropout", false, false, true, NoFlops, NoFlops},
    // Forward and backward are one pass over the vocabulary (training/ops/cross_entropy.h).
    {"cross_entropy", false, false, true, MatMulFlops, LinearBackwardFlops},
}};

}  // namespace

const OpDescription& Describe(OpKind op) { return kOps[static_cast<size_t>(op)]; }

bool ReadsInputsBackward(const Program& program, const Node& node) {
  if (!Describe(node.op).reads_inputs_backward) return false;
  if (node.op == OpKind::kActivate && node.save != ActivationSave::kPlain) return false;
  return node.op != OpKind::kLinear || node.lora.a >= 0 || program.trained[node.weights[0]];
}

}  // namespace tandem::training
