#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
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

// dx gets or adds dy, which has its rows.
void PassOn(NodeRun& run, const Node& node, const float* dy, bool overwrite) {
  float* dx = run.GradientOf(node.inputs[0]);
  if (dx == nullptr) return;
  const Value& x = run.ValueOf(node.inputs[0]);
  const int64_t elements = RowsOf(run.program(), x) * x.cols;
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

// Every rank continues with its own heads or columns of all rows. Their gradients of the rows are
// added.
void ForwardSpread(NodeRun& run, const Node& node) {
  if (!run.ValueOf(node.inputs[0]).divided) return CopyRows(run, node);
  const Matrix x = run.MatrixOf(node.inputs[0]);
  const Matrix y = run.MatrixOf(node.outputs[0]);
  run.GatherRows(x.data, x.stride * static_cast<int64_t>(engine::DTypeBytes(x.dtype)), y.data);
}

void BackwardSpread(NodeRun& run, const Node& node, const BackwardStep& step) {
  float* dy = run.GradientOf(node.outputs[0]);
  const int64_t cols = run.ValueOf(node.outputs[0]).cols;
  if (run.ValueOf(node.inputs[0]).divided) {
    dy = run.SumOwnRows(dy, cols);
  } else {
    run.SumRanks(dy, run.n_rows() * cols);
  }
  PassOn(run, node, dy, step.overwrite[0]);
}

// The bias is added once, after the sum.
void ForwardSumRanks(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  if (run.ValueOf(node.outputs[0]).divided) {
    // No other node reads the rank's part, and no recomputation reads it twice.
    TANDEM_CHECK(!run.in_backward() || run.ValueOf(node.inputs[0]).remade >= 0);
    const float* own = run.SumOwnRows(run.F32Of(node.inputs[0]), y.cols);
    std::memcpy(y.data, own, static_cast<size_t>(y.rows * y.cols) * sizeof(float));
  } else {
    CopyRows(run, node);
    run.SumRanks(static_cast<float*>(y.data), y.rows * y.stride);
  }
  if (const float* bias = run.VectorOf(node, 0)) AddBias(run.ops(), bias, y);
}

void BackwardSumRanks(NodeRun& run, const Node& node, const BackwardStep& step) {
  const Value& y = run.ValueOf(node.outputs[0]);
  const float* dy = run.GradientOf(node.outputs[0]);
  float* dx = run.GradientOf(node.inputs[0]);
  if (!y.divided) {
    PassOn(run, node, dy, step.overwrite[0]);
  } else if (dx != nullptr) {
    TANDEM_CHECK(step.overwrite[0]);  // the sum is the only reader of a rank's part
    run.GatherRows(dy, y.cols * static_cast<int64_t>(sizeof(float)), dx);
  }
  float* db = node.weights.empty() ? nullptr : run.WeightGradient(node.weights[0]);
  if (db == nullptr) return;
  ColumnSums(run.ops(), dy, RowsOf(run.program(), y), y.cols, db);
}

}  // namespace tandem::training
