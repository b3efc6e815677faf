#include "training/ops/attention.h"
#include "training/program/nodes.h"

namespace tandem::training {

void ForwardAttention(NodeRun& run, const Node& node) {
  AttentionForward(run.ops(), node.attention, run.MatrixOf(node.inputs[0]),
                   run.MatrixOf(node.inputs[1]), run.MatrixOf(node.inputs[2]), run.batch().segments,
                   run.ForwardScratch(node), run.MatrixOf(node.outputs[0]), run.Floats(node.saved),
                   run.VectorOf(node, 0));
}

void BackwardAttention(NodeRun& run, const Node& node, const BackwardStep&) {
  AttentionBackward(
      run.ops(), node.attention, run.MatrixOf(node.inputs[0]), run.MatrixOf(node.inputs[1]),
      run.MatrixOf(node.inputs[2]), run.MatrixOf(node.outputs[0]), run.Floats(node.saved),
      run.GradientOf(node.outputs[0]), run.batch().segments, run.GradientOf(node.inputs[0]),
      run.GradientOf(node.inputs[1]), run.GradientOf(node.inputs[2]));
  if (node.weights.empty()) return;
  if (float* dsinks = run.WeightGradient(node.weights[0])) {
    SinkBackward(run.ops(), node.attention, run.VectorOf(node, 0), run.MatrixOf(node.outputs[0]),
                 run.Floats(node.saved), run.GradientOf(node.outputs[0]), dsinks);
  }
}

}  // namespace tandem::training
