#include "engine/ops/heads.h"
#include "engine/ops/lora.h"
#include "engine/ops/rows.h"
#include "training/ops/neftune.h"
#include "training/ops/norm.h"
#include "training/program/nodes.h"

namespace tandem::training {

using engine::Matrix;

namespace {

// h of an embedding's adapter.
Matrix HiddenOfTable(NodeRun& run, const Node& node) {
  const engine::DType dtype = run.program().dtype;
  const int64_t rank = run.PanelsOf(node.lora.a).k;
  return {run.At(node.saved), dtype, run.n_rows(), rank, engine::RowStride(dtype, rank)};
}

}  // namespace

void ForwardEmbed(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  const ProgramBatch& batch = run.batch();
  engine::GatherRows(run.ops(), run.PanelsOf(node),
                     node.op == OpKind::kEmbed ? run.Tokens() : run.Positions(),
                     static_cast<float*>(y.data), y.stride);
  if (node.lora.a >= 0) {
    const engine::LoraMatrices lora = {run.PanelsOf(node.lora.a), run.PanelsOf(node.lora.b),
                                       node.lora.scale};
    const Matrix hidden = HiddenOfTable(run, node);
    engine::AddEmbeddingLora(run.ops(), lora, run.Tokens(), static_cast<float*>(y.data), y.stride,
                             &hidden);
  }
  if (node.factor > 0 && run.training()) {
    AddNeftuneNoise(run.ops(), run.Sources(), batch.segments, node.factor, batch.dropout_seed,
                    y.cols, static_cast<float*>(y.data), run.batch_row());
  }
}

namespace {

// y += B . h, h = scale * A^T[token].
void BackwardTable(NodeRun& run, const Node& node) {
  const Matrix dy = run.RoundedGradient(node);
  const Matrix hidden = HiddenOfTable(run, node);
  engine::OpsContext& ops = run.ops();
  engine::MatMulWeightGrad(ops, dy, hidden, run.WeightGradient(node.lora.b), true);
  float* dh = run.Floats(node.lora.backward_scratch);
  engine::MatMulInputGrad(ops, dy, run.PanelsOf(node.lora.b), dh, hidden.cols, false);
  engine::ScaleRows(ops, dh, node.lora.scale, hidden.rows * hidden.cols, dh);
  EmbedBackward(ops, run.Tokens(), dh, hidden.cols, run.program().weight_specs[node.lora.a].n,
                run.WeightGradient(node.lora.a));
}

}  // namespace

void BackwardEmbed(NodeRun& run, const Node& node, const BackwardStep&) {
  if (float* gradient = run.WeightGradient(node.weights[0])) {
    EmbedBackward(run.ops(), node.op == OpKind::kEmbed ? run.Tokens() : run.Positions(),
                  run.GradientOf(node.outputs[0]), run.ValueOf(node.outputs[0]).cols,
                  run.program().weight_specs[node.weights[0]].n, gradient);
  }
  if (node.lora.a >= 0) BackwardTable(run, node);
}

namespace {

// Columns of a run that kRmsNorm norms, and its scale.
int64_t NormLength(NodeRun& run, const Node& node) {
  return node.weights.empty() ? node.length : run.program().weight_specs[node.weights[0]].n;
}
const float* NormScale(NodeRun& run, const Node& node) {
  return node.weights.empty() ? engine::OnesOfNorm(node.length) : run.VectorOf(node, 0);
}

// A number of the checkpoint, or one of the family's.
float FactorOf(NodeRun& run, const Node& node) {
  return node.weights.empty() ? node.factor : run.VectorOf(node, 0)[0];
}

}  // namespace

void ForwardNorm(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  const float* x = run.F32Of(node.inputs[0]);
  float* statistics = run.Floats(node.saved);
  if (node.op == OpKind::kLayerNorm) {
    engine::LayerNorm(run.ops(), x, y.cols, run.VectorOf(node, 0), run.VectorOf(node, 1), node.eps,
                      y, statistics);
    return;
  }
  const float* gamma = NormScale(run, node);
  const int64_t length = NormLength(run, node);
  if (length < y.cols) {
    engine::RmsNormRuns(run.ops(), x, gamma, length, node.eps, y, statistics);
  } else {
    engine::RmsNorm(run.ops(), x, y.cols, gamma, node.eps, y, statistics);
  }
}

void BackwardNorm(NodeRun& run, const Node& node, const BackwardStep&) {
  const int64_t rows = run.n_rows();
  const int64_t cols = run.ValueOf(node.outputs[0]).cols;
  const float* x = run.F32Of(node.inputs[0]);
  const float* dy = run.GradientOf(node.outputs[0]);
  float* dx = run.GradientOf(node.inputs[0]);
  const float* statistics = run.Floats(node.saved);
  if (node.op == OpKind::kLayerNorm) {
    const auto gradient = [&](size_t i) {
      return i < node.weights.size() ? run.WeightGradient(node.weights[i]) : nullptr;
    };
    LayerNormBackward(run.ops(), x, run.VectorOf(node, 0), statistics, dy, rows, cols, dx,
                      gradient(0), gradient(1));
    return;
  }
  float* dgamma = node.weights.empty() ? nullptr : run.WeightGradient(node.weights[0]);
  const int64_t length = NormLength(run, node);
  RmsNormBackward(run.ops(), x, NormScale(run, node), statistics, dy, rows * cols / length, length,
                  dx, dgamma);
}

void ForwardRound(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  engine::RoundRows(run.ops(), run.F32Of(node.inputs[0]), y.cols, y);
}

void ForwardRope(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  engine::Rope(run.ops(), run.F32Of(node.inputs[0]), y.cols, run.Positions(), run.RopeOf(node), y);
}

void BackwardRope(NodeRun& run, const Node& node, const BackwardStep&) {
  RopeBackward(run.ops(), run.GradientOf(node.outputs[0]), run.Positions(), run.RopeOf(node),
               run.n_rows(), run.ValueOf(node.outputs[0]).cols, run.GradientOf(node.inputs[0]));
}

void ForwardColumns(NodeRun& run, const Node& node) {
  engine::RoundRows(run.ops(), run.F32Of(node.inputs[0]) + node.first,
                    run.ValueOf(node.inputs[0]).stride, run.MatrixOf(node.outputs[0]));
}

void BackwardColumns(NodeRun& run, const Node& node, const BackwardStep&) {
  AccumulateColumns(run.ops(), run.GradientOf(node.outputs[0]), run.n_rows(),
                    run.ValueOf(node.outputs[0]).cols, run.GradientOf(node.inputs[0]) + node.first,
                    run.ValueOf(node.inputs[0]).cols);
}

void ForwardScale(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  engine::ScaleRows(run.ops(), run.F32Of(node.inputs[0]), FactorOf(run, node), y.rows * y.cols,
                    static_cast<float*>(y.data));
}

void BackwardScale(NodeRun& run, const Node& node, const BackwardStep&) {
  AccumulateScaled(run.ops(), run.GradientOf(node.outputs[0]), FactorOf(run, node),
                   run.n_rows() * run.ValueOf(node.outputs[0]).cols,
                   run.GradientOf(node.inputs[0]));
}

void ForwardAdd(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  engine::AddRows(run.ops(), run.F32Of(node.inputs[0]), run.F32Of(node.inputs[1]), y.rows * y.cols,
                  static_cast<float*>(y.data));
}

void BackwardAdd(NodeRun& run, const Node& node, const BackwardStep& step) {
  const int64_t elements = run.n_rows() * run.ValueOf(node.outputs[0]).cols;
  for (size_t side = 0; side < 2; ++side) {
    if (!step.copy[side]) continue;
    float* into = run.GradientOf(node.inputs[side]);
    if (step.overwrite[side]) run.Zero(run.ValueOf(node.inputs[side]).gradient);
    Accumulate(run.ops(), run.GradientOf(node.outputs[0]), elements, into);
  }
}

void ForwardMul(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  engine::MultiplyRows(run.ops(), run.F32Of(node.inputs[0]), run.F32Of(node.inputs[1]),
                       y.rows * y.cols, static_cast<float*>(y.data));
}

void BackwardMul(NodeRun& run, const Node& node, const BackwardStep&) {
  MultiplyBackward(run.ops(), run.F32Of(node.inputs[0]), run.F32Of(node.inputs[1]),
                   run.GradientOf(node.outputs[0]),
                   run.n_rows() * run.ValueOf(node.outputs[0]).cols, run.GradientOf(node.inputs[0]),
                   run.GradientOf(node.inputs[1]));
}

void ForwardSigmoid(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  engine::SigmoidRows(run.ops(), run.F32Of(node.inputs[0]), y.rows * y.cols,
                      static_cast<float*>(y.data));
}

void BackwardSigmoid(NodeRun& run, const Node& node, const BackwardStep&) {
  SigmoidBackward(run.ops(), run.F32Of(node.outputs[0]), run.GradientOf(node.outputs[0]),
                  run.n_rows() * run.ValueOf(node.outputs[0]).cols, run.GradientOf(node.inputs[0]));
}

void ForwardClamp(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  engine::ClampRows(run.ops(), run.F32Of(node.inputs[0]), node.factor, y.rows * y.cols,
                    static_cast<float*>(y.data));
}

void BackwardClamp(NodeRun& run, const Node& node, const BackwardStep&) {
  ClampBackward(run.ops(), run.F32Of(node.inputs[0]), node.factor, run.GradientOf(node.outputs[0]),
                run.n_rows() * run.ValueOf(node.outputs[0]).cols, run.GradientOf(node.inputs[0]));
}

void ForwardDropout(NodeRun& run, const Node& node) {
  const Matrix y = run.MatrixOf(node.outputs[0]);
  const float* x = run.F32Of(node.inputs[0]);
  if (run.training()) {
    Dropout(run.ops(), x, run.Sources(), y.cols, node.rate, run.KeyOf(node),
            static_cast<float*>(y.data), false);
  } else {
    engine::RoundRows(run.ops(), x, y.cols, y);  // f32 to f32: a copy
  }
}

void BackwardDropout(NodeRun& run, const Node& node, const BackwardStep& step) {
  Dropout(run.ops(), run.GradientOf(node.outputs[0]), run.Sources(),
          run.ValueOf(node.outputs[0]).cols, node.rate, run.KeyOf(node),
          run.GradientOf(node.inputs[0]), !step.overwrite[0]);
}

}  // namespace tandem::training
