#include <array>

#include "engine/ops/row_mix.h"
#include "engine/ops/rows.h"
#include "training/ops/row_mix.h"
#include "training/program/nodes.h"

namespace tandem::training {

using engine::Matrix;

void ForwardScaleExperts(NodeRun& run, const Node& node) {
  engine::ScaleExperts(run.ops(), run.F32Of(node.inputs[0]), run.VectorOf(node, 0),
                       run.MatrixOf(node.outputs[0]));
}

void BackwardScaleExperts(NodeRun& run, const Node& node, const BackwardStep&) {
  ScaleExpertsBackward(run.ops(), run.F32Of(node.inputs[0]), run.VectorOf(node, 0),
                       run.GradientOf(node.outputs[0]), run.n_rows(),
                       run.ValueOf(node.outputs[0]).cols / 2, run.GradientOf(node.inputs[0]),
                       run.WeightGradient(node.weights[0]));
}

// The last input has the weights, all before it are streams.
void ForwardMix(NodeRun& run, const Node& node) {
  const size_t n = node.inputs.size() - 1;
  std::array<const float*, engine::kMaxMixed> xs{};
  for (size_t i = 0; i < n; ++i) xs[i] = run.F32Of(node.inputs[i]);
  const int32_t weights = node.inputs.back();
  engine::MixRows(run.ops(), std::span(xs).first(n), run.F32Of(weights), run.ValueOf(weights).cols,
                  node.first, node.factor, run.MatrixOf(node.outputs[0]));
}

void BackwardMix(NodeRun& run, const Node& node, const BackwardStep&) {
  const size_t n = node.inputs.size() - 1;
  std::array<const float*, engine::kMaxMixed> xs{};
  std::array<float*, engine::kMaxMixed> dxs{};
  for (size_t i = 0; i < n; ++i) {
    xs[i] = run.F32Of(node.inputs[i]);
    dxs[i] = run.GradientOf(node.inputs[i]);
  }
  const int32_t weights = node.inputs.back();
  const MixGradient mix{.xs = std::span(xs).first(n),
                        .dxs = std::span(dxs).first(n),
                        .weights = run.F32Of(weights),
                        .dweights = run.GradientOf(weights),
                        .weight_cols = run.ValueOf(weights).cols,
                        .first = node.first,
                        .offset = node.factor};
  MixBackward(run.ops(), mix, run.GradientOf(node.outputs[0]), run.n_rows(),
              run.ValueOf(node.outputs[0]).cols);
}

void ForwardMatchMagnitude(NodeRun& run, const Node& node) {
  engine::MatchMagnitude(run.ops(), run.F32Of(node.inputs[0]), run.F32Of(node.inputs[1]),
                         node.factor, run.MatrixOf(node.outputs[0]));
}

void BackwardMatchMagnitude(NodeRun& run, const Node& node, const BackwardStep&) {
  MatchMagnitudeBackward(run.ops(), run.F32Of(node.inputs[0]), run.F32Of(node.inputs[1]),
                         node.factor, run.GradientOf(node.outputs[0]), run.n_rows(),
                         run.ValueOf(node.outputs[0]).cols, run.GradientOf(node.inputs[0]),
                         run.GradientOf(node.inputs[1]));
}

void ForwardAboveCut(NodeRun& run, const Node& node) {
  engine::AboveCut(run.ops(), run.F32Of(node.inputs[0]), node.factor,
                   run.MatrixOf(node.outputs[0]));
}

void BackwardAboveCut(NodeRun& run, const Node& node, const BackwardStep&) {
  AboveCutBackward(run.ops(), run.F32Of(node.inputs[0]), node.factor,
                   run.GradientOf(node.outputs[0]), run.n_rows(), run.ValueOf(node.outputs[0]).cols,
                   run.GradientOf(node.inputs[0]));
}

void ForwardScaleColumns(NodeRun& run, const Node& node) {
  engine::ScaleColumns(run.ops(), run.F32Of(node.inputs[0]), run.VectorOf(node, 0),
                       run.MatrixOf(node.outputs[0]));
}

void BackwardScaleColumns(NodeRun& run, const Node& node, const BackwardStep&) {
  ScaleColumnsBackward(run.ops(), run.F32Of(node.inputs[0]), run.VectorOf(node, 0),
                       run.GradientOf(node.outputs[0]), run.n_rows(),
                       run.ValueOf(node.outputs[0]).cols, run.GradientOf(node.inputs[0]),
                       run.WeightGradient(node.weights[0]));
}

void ForwardSoftCap(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  engine::SoftCapRows(run.ops(), run.F32Of(node.inputs[0]), node.factor, y.rows * y.cols,
                      static_cast<float*>(y.data));
}

void BackwardSoftCap(NodeRun& run, const Node& node, const BackwardStep&) {
  SoftCapBackward(run.ops(), run.F32Of(node.outputs[0]), node.factor,
                  run.GradientOf(node.outputs[0]), run.n_rows() * run.ValueOf(node.outputs[0]).cols,
                  run.GradientOf(node.inputs[0]));
}

}  // namespace tandem::training
