#include <algorithm>
#include <cstring>

#include "training/program/nodes.h"

namespace tandem::training {

using engine::Matrix;

namespace {

constexpr int64_t kRowsAtOnce = 64;

void AddBias(engine::OpsContext& ops, const float* bias, const Matrix& y) {
  auto* data = static_cast<float*>(y.data);
  ops.pool().ParallelFor((y.rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](int64_t block, int) {
    const int64_t end = std::min(y.rows, (block + 1) * kRowsAtOnce);
    for (int64_t r = block * kRowsAtOnce; r < end; ++r) {
      for (int64_t c = 0; c < y.cols; ++c) data[r * y.stride + c] += bias[c];
    }
  });
}

void PassOn(NodeRun& run, const Node& node, bool overwrite) {
  float* dx = run.GradientOf(node.inputs[0]);
  if (dx == nullptr) return;
  const float* dy = run.GradientOf(node.outputs[0]);
  const int64_t elements = run.n_rows() * run.ValueOf(node.outputs[0]).cols;
  if (overwrite) {
    std::memcpy(dx, dy, static_cast<size_t>(elements) * sizeof(float));
  } else {
    Accumulate(run.ops(), dy, elements, dx);
  }
}

void CopyRows(NodeRun& run, const Node& node) {
  const Matrix x = run.MatrixOf(node.inputs[0]);
  const Matrix y = run.MatrixOf(node.outputs[0]);
  std::memcpy(y.data, x.data, static_cast<size_t>(y.rows * y.stride) * engine::DTypeBytes(y.dtype));
}

}  // namespace

// Every rank goes on with its own heads or columns; their gradients of the rows are added.
void ForwardSpread(NodeRun& run, const Node& node) { CopyRows(run, node); }

void BackwardSpread(NodeRun& run, const Node& node, const BackwardStep& step) {
  run.SumRanks(run.GradientOf(node.outputs[0]), run.n_rows() * run.ValueOf(node.outputs[0]).cols);
  PassOn(run, node, step.overwrite[0]);
}

// The bias is added once, after the sum.
void ForwardSumRanks(NodeRun& run, const Node& node) {
  CopyRows(run, node);
  const Matrix y = run.MatrixOf(node.outputs[0]);
  run.SumRanks(static_cast<float*>(y.data), y.rows * y.stride);
  if (const float* bias = run.VectorOf(node, 0)) AddBias(run.ops(), bias, y);
}

void BackwardSumRanks(NodeRun& run, const Node& node, const BackwardStep& step) {
  PassOn(run, node, step.overwrite[0]);
  float* db = node.weights.empty() ? nullptr : run.WeightGradient(node.weights[0]);
  if (db == nullptr) return;
  ColumnSums(run.ops(), run.GradientOf(node.outputs[0]), run.n_rows(),
             run.ValueOf(node.outputs[0]).cols, db);
}

}  // namespace tandem::training
