#include <vector>

#include "engine/ops/recurrence.h"
#include "training/ops/recurrence.h"
#include "training/program/nodes.h"

namespace tandem::training {
namespace {

std::vector<engine::StateRows> StateRowsOf(const NodeRun& run) {
  std::vector<engine::StateRows> rows(run.batch().segments.size());
  FillStateRows(run.batch().segments, rows);
  return rows;
}

engine::DeltaInputs DeltaInputsOf(NodeRun& run, const Node& node) {
  return {.qkv = run.F32Of(node.inputs[0]),
          .a = run.F32Of(node.inputs[1]),
          .b = run.F32Of(node.inputs[2]),
          .a_log = run.VectorOf(node, 0),
          .dt_bias = run.VectorOf(node, 1)};
}

engine::ScanInputs ScanInputsOf(NodeRun& run, const Node& node) {
  return {.xbc = run.F32Of(node.inputs[0]),
          .dt = run.F32Of(node.inputs[1]),
          .a_log = run.VectorOf(node, 0),
          .dt_bias = run.VectorOf(node, 1),
          .d = run.VectorOf(node, 2)};
}

}  // namespace

void ForwardCausalConv(NodeRun& run, const Node& node) {
  engine::CausalConv(run.ops(), node.conv, run.F32Of(node.inputs[0]), run.VectorOf(node, 0),
                     run.VectorOf(node, 1), StateRowsOf(run), 0, run.F32Of(node.outputs[0]));
}

void BackwardCausalConv(NodeRun& run, const Node& node, const BackwardStep&) {
  CausalConvBackward(run.ops(), node.conv, run.F32Of(node.inputs[0]), run.VectorOf(node, 0),
                     run.VectorOf(node, 1), run.GradientOf(node.outputs[0]), run.batch().segments,
                     run.GradientOf(node.inputs[0]), run.WeightGradient(node.weights[0]),
                     node.weights.size() > 1 ? run.WeightGradient(node.weights[1]) : nullptr);
}

void ForwardGatedDelta(NodeRun& run, const Node& node) {
  engine::GatedDelta(run.ops(), node.delta, DeltaInputsOf(run, node), StateRowsOf(run), 0,
                     run.F32Of(node.outputs[0]));
}

void BackwardGatedDelta(NodeRun& run, const Node& node, const BackwardStep&) {
  GatedDeltaBackward(run.ops(), node.delta, DeltaInputsOf(run, node),
                     run.GradientOf(node.outputs[0]), run.batch().segments,
                     {.qkv = run.GradientOf(node.inputs[0]),
                      .a = run.GradientOf(node.inputs[1]),
                      .b = run.GradientOf(node.inputs[2]),
                      .a_log = run.WeightGradient(node.weights[0]),
                      .dt_bias = run.WeightGradient(node.weights[1])});
}

void ForwardSelectiveScan(NodeRun& run, const Node& node) {
  engine::SelectiveScan(run.ops(), node.scan, ScanInputsOf(run, node), StateRowsOf(run), 0,
                        run.F32Of(node.outputs[0]));
}

void BackwardSelectiveScan(NodeRun& run, const Node& node, const BackwardStep&) {
  SelectiveScanBackward(run.ops(), node.scan, ScanInputsOf(run, node),
                        run.GradientOf(node.outputs[0]), run.batch().segments,
                        {.xbc = run.GradientOf(node.inputs[0]),
                         .dt = run.GradientOf(node.inputs[1]),
                         .a_log = run.WeightGradient(node.weights[0]),
                         .dt_bias = run.WeightGradient(node.weights[1]),
                         .d = run.WeightGradient(node.weights[2])});
}

void ForwardGate(NodeRun& run, const Node& node) {
  engine::GateRows(run.ops(), run.MatrixOf(node.inputs[0]), run.F32Of(node.inputs[1]), node.gate,
                   run.F32Of(node.outputs[0]));
}

void BackwardGate(NodeRun& run, const Node& node, const BackwardStep&) {
  GateRowsBackward(run.ops(), run.MatrixOf(node.inputs[0]), run.F32Of(node.inputs[1]), node.gate,
                   run.GradientOf(node.outputs[0]), run.GradientOf(node.inputs[0]),
                   run.GradientOf(node.inputs[1]));
}

}  // namespace tandem::training
