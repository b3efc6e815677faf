#include "engine/ops/rows.h"
#include "training/program/nodes.h"

namespace tandem::training {

using engine::Matrix;

void ForwardGatedActivation(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  engine::GatedActivation(run.ops(), run.F32Of(node.inputs[0]), run.F32Of(node.inputs[1]), y.cols,
                          node.activation, y);
}

void BackwardGatedActivation(NodeRun& run, const Node& node, const BackwardStep&) {
  GatedActivationBackward(run.ops(), run.F32Of(node.inputs[0]), run.F32Of(node.inputs[1]),
                          node.activation, run.GradientOf(node.outputs[0]),
                          run.n_rows() * run.ValueOf(node.outputs[0]).cols,
                          run.GradientOf(node.inputs[0]), run.GradientOf(node.inputs[1]));
}

// A second run unpacks a packed result and computes nothing else.
void ForwardActivate(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  if (run.in_backward() && node.save == ActivationSave::kReluSparse) {
    UnpackRelu(run.ops(), run.MaskOf(node), run.PackedOf(node), y);
    return;
  }
  const float* x = run.F32Of(node.inputs[0]);
  engine::Activate(run.ops(), x, y.cols, node.activation, y);
  if (!run.training()) return;
  if (node.save == ActivationSave::kReluMask1) {
    ReluMask(run.ops(), x, y.rows * y.cols, run.MaskOf(node));
  }
  if (node.save == ActivationSave::kReluSparse) {
    PackRelu(run.ops(), x, y, run.MaskOf(node), &run.PackedOf(node));
  }
}

void BackwardActivate(NodeRun& run, const Node& node, const BackwardStep&) {
  const Value& out = run.ValueOf(node.outputs[0]);
  const int64_t elements = run.n_rows() * out.cols;
  const float* dy = run.GradientOf(node.outputs[0]);
  float* dx = run.GradientOf(node.inputs[0]);
  switch (node.save) {
    case ActivationSave::kReluMask1:
      return ReluMaskBackward(run.ops(), run.MaskOf(node), dy, elements, dx);
    case ActivationSave::kReluSparse:
      return PackedReluBackward(run.ops(), run.MaskOf(node), run.PackedOf(node), out.dtype, dy,
                                elements, dx);
    default:
      return ActivateBackward(run.ops(), run.F32Of(node.inputs[0]), node.activation, dy, elements,
                              dx);
  }
}

}  // namespace tandem::training
