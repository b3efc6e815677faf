#include "engine/ops/lora.h"
#include "engine/ops/rows.h"
#include "training/ops/dora.h"
#include "training/program/nodes.h"

namespace tandem::training {
namespace {

using engine::Matrix;

// h of a node's adapter.
Matrix HiddenOf(NodeRun& run, const Node& node) {
  const engine::DType dtype = run.program().dtype;
  const int64_t rank = run.PanelsOf(node.lora.a).n;
  const int64_t stride = engine::RowStride(dtype, rank);
  const auto width = static_cast<int64_t>(engine::DTypeBytes(dtype));
  return {run.At(node.saved) + run.first_row() * stride * width, dtype, run.n_rows(), rank, stride};
}

// The input of a node's A: x, or with dropout drop(x), written to `scratch`.
Matrix LoraInput(NodeRun& run, const Node& node, int32_t scratch) {
  const Matrix x = run.MatrixOf(node.inputs[0]);
  if (node.lora.rate == 0) return x;
  const Matrix dropped{run.At(scratch), x.dtype, x.rows, x.cols, x.stride};
  DropoutRounded(run.ops(), x, run.Sources(), node.lora.rate, run.KeyOf(node), dropped);
  return dropped;
}

void ForwardLora(NodeRun& run, const Node& node) {
  const bool is_dora = node.lora.factors >= 0;
  const engine::LoraMatrices lora{run.PanelsOf(node.lora.a), run.PanelsOf(node.lora.b),
                                  node.lora.scale,
                                  is_dora ? run.VectorAt(node.lora.factors) : nullptr};
  const engine::LoraRows all{&lora, 0, run.n_rows(), is_dora ? run.VectorOf(node, 1) : nullptr};
  const Matrix hidden = HiddenOf(run, node);
  const int32_t scratch = run.in_backward() ? node.lora.remake_scratch : node.lora.forward_scratch;
  const Matrix x = run.training() ? LoraInput(run, node, scratch) : run.MatrixOf(node.inputs[0]);
  engine::AddLora(run.ops(), x, {&all, 1}, run.F32Of(node.outputs[0]),
                  run.ValueOf(node.outputs[0]).stride, &hidden);
}

// y += B . h, h = scale * (A . drop(x)). dh is rounded like every gradient that enters a matrix
// product.
void BackwardLora(NodeRun& run, const Node& node, const Matrix& dy, float* dx) {
  const engine::PanelMatrix& a = run.PanelsOf(node.lora.a);
  const engine::PanelMatrix& b = run.PanelsOf(node.lora.b);
  const engine::DType dtype = run.program().dtype;
  engine::OpsContext& ops = run.ops();
  const int64_t rows = run.n_rows();
  const int64_t rank = a.n;

  engine::MatMulWeightGrad(ops, dy, HiddenOf(run, node), run.WeightGradient(node.lora.b), true);
  float* dh32 = run.Floats(node.lora.backward_scratch);
  engine::MatMulInputGrad(ops, dy, b, dh32, rank, false);
  engine::ScaleRows(ops, dh32, node.lora.scale, rows * rank, dh32);
  const Matrix dh{dh32 + rows * rank, dtype, rows, rank, engine::RowStride(dtype, rank)};
  engine::RoundRows(ops, dh32, rank, dh);
  const Matrix x = LoraInput(run, node, node.lora.dropout_scratch);
  engine::MatMulWeightGrad(ops, dh, x, run.WeightGradient(node.lora.a), true);
  if (dx == nullptr) return;
  if (node.lora.rate == 0) {
    engine::MatMulInputGrad(ops, dh, a, dx, a.k, true);
    return;
  }
  float* through_a = run.Floats(node.lora.dropout_scratch);  // reuses the buffer of drop(x), which
                                                             // is no longer needed
  engine::MatMulInputGrad(ops, dh, a, through_a, a.k, false);
  Dropout(ops, through_a, run.Sources(), a.k, node.lora.rate, run.KeyOf(node), dx, true);
}

// DoRA: y = factors * u + bias with u = W x + B . h, whose norms count as constants. Adds the
// gradient of the magnitudes and returns that of u in the compute dtype.
Matrix BackwardDora(NodeRun& run, const Node& node) {
  const engine::PanelMatrix& w = run.PanelsOf(node);
  engine::OpsContext& ops = run.ops();
  float* u = run.Floats(node.lora.dora_scratch);
  engine::MatMul(ops, run.MatrixOf(node.inputs[0]), w, nullptr, u, w.n);
  engine::AddLowRank(ops, HiddenOf(run, node), run.PanelsOf(node.lora.b), u, w.n);
  const float* factors = run.VectorAt(node.lora.factors);
  DoraGradient(ops, {.dy = run.GradientOf(node.outputs[0]),
                     .factors = factors,
                     .inverse = factors + w.n,
                     .rows = run.n_rows(),
                     .cols = w.n,
                     .u = u,
                     .dmagnitude = run.WeightGradient(node.lora.magnitude)});
  const engine::DType dtype = run.program().dtype;
  if (dtype == engine::DType::kF32) return {u, dtype, run.n_rows(), w.n, w.n};
  const Matrix rounded{run.At(node.backward_scratch), dtype, run.n_rows(), w.n,
                       engine::RowStride(dtype, w.n)};
  engine::RoundRows(ops, u, w.n, rounded);
  return rounded;
}

}  // namespace

void ForwardLinear(NodeRun& run, const Node& node) {
  const float* bias = node.lora.factors >= 0 ? nullptr : run.VectorOf(node, 1);
  engine::MatMul(run.ops(), run.MatrixOf(node.inputs[0]), run.PanelsOf(node), bias,
                 run.F32Of(node.outputs[0]), run.ValueOf(node.outputs[0]).stride);
  if (node.lora.a >= 0) ForwardLora(run, node);
}

void BackwardLinear(NodeRun& run, const Node& node, const BackwardStep& step) {
  const engine::PanelMatrix& w = run.PanelsOf(node);
  const Matrix dy = node.lora.factors >= 0 ? BackwardDora(run, node) : run.RoundedGradient(node);
  float* dx = run.GradientOf(node.inputs[0]);
  if (dx != nullptr) engine::MatMulInputGrad(run.ops(), dy, w, dx, w.k, !step.overwrite[0]);
  if (node.lora.a >= 0) BackwardLora(run, node, dy, dx);
  if (float* dw = run.WeightGradient(node.weights[0])) {
    engine::MatMulWeightGrad(run.ops(), dy, run.MatrixOf(node.inputs[0]), dw, true);
  }
  if (node.weights.size() < 2) return;
  if (float* db = run.WeightGradient(node.weights[1])) {
    ColumnSums(run.ops(), run.GradientOf(node.outputs[0]), run.n_rows(), w.n, db);
  }
}

}  // namespace tandem::training
