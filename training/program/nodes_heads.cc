#include "engine/ops/heads.h"
#include "training/ops/heads.h"
#include "training/program/nodes.h"

namespace tandem::training {
namespace {

// Columns of one head of the i-th input.
int64_t HeadDim(NodeRun& run, const Node& node, size_t i, int64_t n_heads) {
  return run.ValueOf(node.inputs[i]).cols / n_heads;
}

int64_t SecondHeads(NodeRun& run, const Node& node) {
  const int64_t joined = run.ValueOf(node.outputs[0]).cols / node.heads;
  const int64_t b_dim = joined - HeadDim(run, node, 0, node.heads);
  return run.ValueOf(node.inputs[1]).cols / b_dim;
}

}  // namespace

void ForwardSliceHeads(NodeRun& run, const Node& node) {
  engine::SliceHeads(run.ops(), run.F32Of(node.inputs[0]), run.ValueOf(node.inputs[0]).stride,
                     node.heads, HeadDim(run, node, 0, node.heads), node.first,
                     run.MatrixOf(node.outputs[0]));
}

void BackwardSliceHeads(NodeRun& run, const Node& node, const BackwardStep&) {
  SliceHeadsBackward(run.ops(), run.GradientOf(node.outputs[0]), run.n_rows(), node.heads,
                     HeadDim(run, node, 0, node.heads), node.first,
                     run.ValueOf(node.outputs[0]).cols / node.heads,
                     run.GradientOf(node.inputs[0]));
}

void ForwardJoinHeads(NodeRun& run, const Node& node) {
  const int64_t b_heads = SecondHeads(run, node);
  engine::JoinHeads(run.ops(), run.F32Of(node.inputs[0]), HeadDim(run, node, 0, node.heads),
                    run.F32Of(node.inputs[1]), HeadDim(run, node, 1, b_heads), b_heads, node.heads,
                    run.MatrixOf(node.outputs[0]));
}

void BackwardJoinHeads(NodeRun& run, const Node& node, const BackwardStep&) {
  const int64_t b_heads = SecondHeads(run, node);
  JoinHeadsBackward(run.ops(), run.GradientOf(node.outputs[0]), run.n_rows(),
                    HeadDim(run, node, 0, node.heads), HeadDim(run, node, 1, b_heads), b_heads,
                    node.heads, run.GradientOf(node.inputs[0]), run.GradientOf(node.inputs[1]));
}

}  // namespace tandem::training
