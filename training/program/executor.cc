#include "training/program/executor.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/ops/lora.h"
#include "training/ops/norm.h"

namespace tandem::training {

using engine::ConstMatrix;
using engine::DType;
using engine::Matrix;

Executor::Executor(const Program& program, engine::OpsContext& ops,
                   std::span<const engine::RopeTable> ropes, const engine::Weights& weights,
                   std::span<float* const> gradients)
    : program_(program),
      ops_(ops),
      ropes_(ropes),
      weights_(weights),
      gradients_(gradients.begin(), gradients.end()),
      arena_(static_cast<size_t>(program.arena_bytes)),
      n_rows_(program.rows),
      packed_(program.nodes.size()) {
  TANDEM_CHECK(weights.size() == program.weight_specs.size());
  TANDEM_CHECK(gradients_.size() == weights.size());
  for (const Node& node : program.nodes) {
    TANDEM_CHECK(node.op != OpKind::kRope || node.rope < ropes.size());
    if (node.save != ActivationSave::kReluSparse) continue;
    const int64_t chunk = node.chunk >= 0 ? program.chunk_rows : program.rows;
    packed_[static_cast<size_t>(&node - program.nodes.data())].resize(
        static_cast<size_t>((program.rows + chunk - 1) / chunk));
  }
}

CrossEntropyResult Executor::Train(const ProgramBatch& batch, float scale, const Reweigh& reweigh) {
  Check(batch);
  Forward(batch, true);
  const CrossEntropyResult result = reweigh ? ReweighedHead(batch, scale, reweigh)
                                            : Head(batch, batch.weights, scale, true, nullptr);
  Backward(batch);
  return result;
}

void Executor::Backward(const ProgramBatch& batch) {
  in_backward_ = true;
  const std::vector<BackwardStep>& steps = program_.backward;
  for (size_t i = 0; i < steps.size();) {
    const size_t end = ChunkRunEnd(program_, i);
    const auto run = [&] {
      for (size_t s = i; s < end; ++s) {
        const Node& node = program_.nodes[steps[s].node];
        const TraceSpan span(trace_, Trace::Lane::kCompute, Describe(node.op).name,
                             steps[s].remake ? "again" : "backward");
        if (steps[s].remake) {
          ForwardNode(node, batch, true);
        } else {
          BackwardNode(steps[s], batch);
        }
      }
    };
    program_.nodes[steps[i].node].chunk >= 0 ? OverChunks(run) : run();
    i = end;
  }
}

template <class Run>
void Executor::OverChunks(const Run& run) {
  for (first_row_ = 0; first_row_ < program_.rows; first_row_ += program_.chunk_rows) {
    n_rows_ = std::min(program_.chunk_rows, program_.rows - first_row_);
    run();
  }
  first_row_ = 0;
  n_rows_ = program_.rows;
}

int64_t Executor::packed_bytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < packed_.size(); ++i) {
    const auto width = static_cast<int64_t>(engine::DTypeBytes(program_.dtype));
    for (const PackedRelu& packed : packed_[i]) bytes += packed.count * width;
  }
  return bytes;
}

CrossEntropyResult Executor::Evaluate(const ProgramBatch& batch, float* token_logprobs) {
  Check(batch);
  Forward(batch, false);
  return Head(batch, batch.weights, 1, false, token_logprobs);
}

void Executor::ForwardLogits(const ProgramBatch& batch, float* logits) {
  Check(batch);
  Forward(batch, false);
  const Node& head = program_.nodes.back();
  const engine::PanelMatrix& panels = weights_[head.weights[0]].panels;
  engine::MatMul(ops_, MatrixOf(head.inputs[0]), panels, VectorOf(head, 1), logits, panels.n);
  if (head.soft_cap > 0) {
    engine::SoftCap(ops_, head.soft_cap, program_.rows * panels.n, logits);
  }
}

// Only tests and the packer call this, never a client. An unchecked wrong segment would silently
// read another segment's keys.
void Executor::Check(const ProgramBatch& batch) const {
  const auto rows = static_cast<size_t>(program_.rows);
  TANDEM_CHECK(batch.tokens.size() == rows && batch.positions.size() == rows);
  TANDEM_CHECK(batch.segments.size() <= static_cast<size_t>(program_.max_segments));
  int64_t next = 0;
  for (const Segment& segment : batch.segments) {
    TANDEM_CHECK(segment.first_row == next && segment.n_rows > 0);
    next += segment.n_rows;
  }
  TANDEM_CHECK(next == program_.rows);
}

void Executor::Forward(const ProgramBatch& batch, bool dropout) {
  in_backward_ = false;
  const std::vector<Node>& nodes = program_.nodes;
  for (size_t i = 0; i + 1 < nodes.size();) {
    size_t end = i + 1;
    while (nodes[i].chunk >= 0 && nodes[end].chunk == nodes[i].chunk) ++end;
    const auto run = [&] {
      for (size_t n = i; n < end; ++n) {
        const TraceSpan span(trace_, Trace::Lane::kCompute, Describe(nodes[n].op).name, "forward");
        ForwardNode(nodes[n], batch, dropout);
      }
    };
    nodes[i].chunk >= 0 ? OverChunks(run) : run();
    i = end;
  }
}

void Executor::ForwardNode(const Node& node, const ProgramBatch& batch, bool dropout) {
  const Matrix y = MatrixOf(node.outputs[0]);
  switch (node.op) {
    case OpKind::kEmbed:
    case OpKind::kEmbedPositions:
      engine::GatherRows(ops_, weights_[node.weights[0]].panels,
                         node.op == OpKind::kEmbed ? batch.tokens : batch.positions,
                         F32Of(node.outputs[0]), y.stride);
      return;
    case OpKind::kRmsNorm:
    case OpKind::kLayerNorm:
      ForwardNorm(node);
      return;
    case OpKind::kRound:
      engine::RoundRows(ops_, F32Of(node.inputs[0]), y.cols, y);
      return;
    case OpKind::kLinear:
      ForwardLinear(node, batch, dropout);
      return;
    case OpKind::kRope:
      engine::Rope(ops_, F32Of(node.inputs[0]), y.cols, batch.positions, ropes_[node.rope], y);
      return;
    case OpKind::kAttention:
      AttentionForward(ops_, node.attention, MatrixOf(node.inputs[0]), MatrixOf(node.inputs[1]),
                       MatrixOf(node.inputs[2]), batch.segments,
                       At(in_backward_ ? node.remake_scratch : node.forward_scratch), y,
                       Floats(node.saved));
      return;
    case OpKind::kGatedActivation:
      engine::GatedActivation(ops_, F32Of(node.inputs[0]), F32Of(node.inputs[1]), y.cols,
                              node.activation, y);
      return;
    case OpKind::kActivate:
      ForwardActivation(node, dropout);
      return;
    case OpKind::kColumns:
      engine::RoundRows(ops_, F32Of(node.inputs[0]) + node.first,
                        program_.values[node.inputs[0]].stride, y);
      return;
    case OpKind::kScale:
      engine::ScaleRows(ops_, F32Of(node.inputs[0]), node.factor, y.rows * y.cols,
                        F32Of(node.outputs[0]));
      return;
    case OpKind::kAdd:
      engine::AddRows(ops_, F32Of(node.inputs[0]), F32Of(node.inputs[1]), y.rows * y.cols,
                      F32Of(node.outputs[0]));
      return;
    case OpKind::kDropout:
      if (dropout) {
        Dropout(ops_, F32Of(node.inputs[0]), SourcesOf(batch), y.cols, node.rate,
                KeyOf(node, batch), F32Of(node.outputs[0]), false);
      } else {
        engine::RoundRows(ops_, F32Of(node.inputs[0]), y.cols, y);  // f32 to f32: a copy
      }
      return;
    case OpKind::kCrossEntropy:
      break;
  }
  TANDEM_CHECK(false);
}

// A second run unpacks a packed result and computes nothing else.
void Executor::ForwardActivation(const Node& node, bool training) {
  const Matrix y = MatrixOf(node.outputs[0]);
  if (in_backward_ && node.save == ActivationSave::kReluSparse) {
    UnpackRelu(ops_, MaskOf(node), PackedOf(node), y);
    return;
  }
  const float* x = F32Of(node.inputs[0]);
  engine::Activate(ops_, x, y.cols, node.activation, y);
  if (!training) return;
  if (node.save == ActivationSave::kReluMask1) ReluMask(ops_, x, y.rows * y.cols, MaskOf(node));
  if (node.save == ActivationSave::kReluSparse) {
    PackRelu(ops_, x, y, MaskOf(node), &PackedOf(node));
  }
}

void Executor::ForwardNorm(const Node& node) {
  const Matrix y = MatrixOf(node.outputs[0]);
  const float* x = F32Of(node.inputs[0]);
  const float* gamma = VectorOf(node, 0);
  float* statistics = Floats(node.saved);
  if (node.op == OpKind::kLayerNorm) {
    engine::LayerNorm(ops_, x, y.cols, gamma, VectorOf(node, 1), node.eps, y, statistics);
    return;
  }
  const int64_t length = program_.weight_specs[node.weights[0]].n;  // of a row, or of a head
  if (length < y.cols) {
    engine::RmsNormRuns(ops_, x, gamma, length, node.eps, y, statistics);
  } else {
    engine::RmsNorm(ops_, x, y.cols, gamma, node.eps, y, statistics);
  }
}

void Executor::ForwardLinear(const Node& node, const ProgramBatch& batch, bool dropout) {
  engine::MatMul(ops_, MatrixOf(node.inputs[0]), weights_[node.weights[0]].panels,
                 VectorOf(node, 1), F32Of(node.outputs[0]),
                 program_.values[node.outputs[0]].stride);
  if (node.lora.a >= 0) ForwardLora(node, batch, dropout);
}

void Executor::ForwardLora(const Node& node, const ProgramBatch& batch, bool dropout) {
  const engine::LoraMatrices lora{weights_[node.lora.a].panels, weights_[node.lora.b].panels,
                                  node.lora.scale};
  const engine::LoraRows all{&lora, 0, n_rows_};
  const Matrix hidden = HiddenOf(node);
  const int32_t scratch = in_backward_ ? node.lora.remake_scratch : node.lora.forward_scratch;
  const Matrix x = dropout ? LoraInput(node, batch, scratch) : MatrixOf(node.inputs[0]);
  engine::AddLora(ops_, x, {&all, 1}, F32Of(node.outputs[0]),
                  program_.values[node.outputs[0]].stride, &hidden);
}

// Logits do not outlive their tile, so the head's product runs twice; everything below runs once.
CrossEntropyResult Executor::ReweighedHead(const ProgramBatch& batch, float scale,
                                           const Reweigh& reweigh) {
  token_logprobs_.assign(batch.weights.size(), 0.0f);
  token_weights_.assign(batch.weights.begin(), batch.weights.end());
  Head(batch, batch.weights, 1, false, token_logprobs_.data());
  reweigh(token_logprobs_, token_weights_);
  return Head(batch, token_weights_, scale, true, nullptr);
}

CrossEntropyResult Executor::Head(const ProgramBatch& batch, std::span<const float> weights,
                                  float scale, bool train, float* token_logprobs) {
  const Node& node = program_.nodes.back();
  const TraceSpan span(trace_, Trace::Lane::kCompute, Describe(node.op).name);
  CrossEntropyArgs args;
  args.hidden = MatrixOf(node.inputs[0]);
  args.head = weights_[node.weights[0]].panels;
  args.bias = VectorOf(node, 1);
  args.soft_cap = node.soft_cap;
  args.targets = batch.targets;
  args.weights = weights;
  args.scale = scale;
  const bool backward = train && program_.values[node.inputs[0]].needs_gradient;
  float* dhidden = backward ? GradientOf(node.inputs[0]) : nullptr;
  float* dhead = backward ? WeightGradient(node.weights[0]) : nullptr;
  float* dbias = backward && node.weights.size() > 1 ? WeightGradient(node.weights[1]) : nullptr;
  return CrossEntropy(ops_, head_workspace_, args, dhidden, dhead, dbias, token_logprobs);
}

void Executor::BackwardNode(const BackwardStep& step, const ProgramBatch& batch) {
  const Node& node = program_.nodes[step.node];
  for (const int32_t buffer : step.zero) Zero(buffer);

  const Value& out = program_.values[node.outputs[0]];
  const float* dy = GradientOf(node.outputs[0]);
  const int64_t rows = n_rows_;
  const int64_t elements = rows * out.cols;
  float* dx = node.inputs.empty() ? nullptr : GradientOf(node.inputs[0]);
  switch (node.op) {
    case OpKind::kEmbed:
      EmbedBackward(ops_, batch.tokens, dy, out.cols, WeightGradient(node.weights[0]));
      return;
    case OpKind::kEmbedPositions:
      EmbedBackward(ops_, batch.positions, dy, out.cols, WeightGradient(node.weights[0]));
      return;
    case OpKind::kRmsNorm:
    case OpKind::kLayerNorm:
      BackwardNorm(node, dy, dx);
      return;
    case OpKind::kLinear:
      BackwardLinear(step, batch);
      return;
    case OpKind::kRope:
      RopeBackward(ops_, dy, batch.positions, ropes_[node.rope], rows, out.cols, dx);
      return;
    case OpKind::kAttention:
      AttentionBackward(ops_, node.attention, MatrixOf(node.inputs[0]), MatrixOf(node.inputs[1]),
                        MatrixOf(node.inputs[2]), MatrixOf(node.outputs[0]), Floats(node.saved), dy,
                        batch.segments, dx, GradientOf(node.inputs[1]), GradientOf(node.inputs[2]));
      return;
    case OpKind::kGatedActivation:
      GatedActivationBackward(ops_, F32Of(node.inputs[0]), F32Of(node.inputs[1]), node.activation,
                              dy, elements, dx, GradientOf(node.inputs[1]));
      return;
    case OpKind::kActivate:
      BackwardActivation(node, dy, dx);
      return;
    case OpKind::kColumns:
      AccumulateColumns(ops_, dy, rows, out.cols, dx + node.first,
                        program_.values[node.inputs[0]].cols);
      return;
    case OpKind::kScale:
      AccumulateScaled(ops_, dy, node.factor, elements, dx);
      return;
    case OpKind::kAdd:
      BackwardAdd(step, dy);
      return;
    case OpKind::kDropout:
      Dropout(ops_, dy, SourcesOf(batch), out.cols, node.rate, KeyOf(node, batch), dx,
              !step.overwrite[0]);
      return;
    case OpKind::kRound:
    case OpKind::kCrossEntropy:
      break;
  }
  TANDEM_CHECK(false);
}

void Executor::BackwardNorm(const Node& node, const float* dy, float* dx) {
  const int64_t cols = program_.values[node.outputs[0]].cols;
  const float* x = F32Of(node.inputs[0]);
  const float* statistics = Floats(node.saved);
  float* dgamma = WeightGradient(node.weights[0]);
  if (node.op == OpKind::kLayerNorm) {
    LayerNormBackward(ops_, x, VectorOf(node, 0), statistics, dy, program_.rows, cols, dx, dgamma,
                      WeightGradient(node.weights[1]));
    return;
  }
  const int64_t length = program_.weight_specs[node.weights[0]].n;  // of a row, or of a head
  RmsNormBackward(ops_, x, VectorOf(node, 0), statistics, dy, program_.rows * cols / length, length,
                  dx, dgamma);
}

void Executor::BackwardActivation(const Node& node, const float* dy, float* dx) {
  const Value& out = program_.values[node.outputs[0]];
  const int64_t elements = n_rows_ * out.cols;
  switch (node.save) {
    case ActivationSave::kReluMask1:
      return ReluMaskBackward(ops_, MaskOf(node), dy, elements, dx);
    case ActivationSave::kReluSparse:
      return PackedReluBackward(ops_, MaskOf(node), PackedOf(node), out.dtype, dy, elements, dx);
    default:
      return ActivateBackward(ops_, F32Of(node.inputs[0]), node.activation, dy, elements, dx);
  }
}

void Executor::BackwardAdd(const BackwardStep& step, const float* dy) {
  const Node& node = program_.nodes[step.node];
  const int64_t elements = program_.rows * program_.values[node.outputs[0]].cols;
  for (size_t side = 0; side < 2; ++side) {
    if (!step.copy[side]) continue;
    float* into = GradientOf(node.inputs[side]);
    if (step.overwrite[side]) Zero(program_.values[node.inputs[side]].gradient);
    Accumulate(ops_, dy, elements, into);
  }
}

void Executor::BackwardLinear(const BackwardStep& step, const ProgramBatch& batch) {
  const Node& node = program_.nodes[step.node];
  const engine::PanelMatrix& w = weights_[node.weights[0]].panels;
  const float* dy32 = GradientOf(node.outputs[0]);
  const int64_t rows = n_rows_;

  Matrix dy{const_cast<float*>(dy32), DType::kF32, rows, w.n, w.n};
  if (program_.dtype != DType::kF32) {
    dy = {At(node.backward_scratch), program_.dtype, rows, w.n,
          engine::RowStride(program_.dtype, w.n)};
    engine::RoundRows(ops_, dy32, w.n, dy);
  }

  float* dx = GradientOf(node.inputs[0]);
  if (dx != nullptr) engine::MatMulInputGrad(ops_, dy, w, dx, w.k, !step.overwrite[0]);
  if (node.lora.a >= 0) BackwardLora(node, dy, batch, dx);
  if (float* dw = WeightGradient(node.weights[0])) {
    engine::MatMulWeightGrad(ops_, dy, MatrixOf(node.inputs[0]), dw, true);
  }
  if (node.weights.size() > 1) {
    if (float* db = WeightGradient(node.weights[1])) ColumnSums(ops_, dy32, rows, w.n, db);
  }
}

// y += B . h, h = scale * (A . drop(x)). dh is rounded like every gradient that enters a matrix
// product.
void Executor::BackwardLora(const Node& node, const Matrix& dy, const ProgramBatch& batch,
                            float* dx) {
  const engine::PanelMatrix& a = weights_[node.lora.a].panels;
  const engine::PanelMatrix& b = weights_[node.lora.b].panels;
  const int64_t rows = n_rows_;
  const int64_t rank = a.n;

  engine::MatMulWeightGrad(ops_, dy, HiddenOf(node), WeightGradient(node.lora.b), true);
  float* dh32 = Floats(node.lora.backward_scratch);
  engine::MatMulInputGrad(ops_, dy, b, dh32, rank, false);
  engine::ScaleRows(ops_, dh32, node.lora.scale, rows * rank, dh32);
  const Matrix dh{dh32 + rows * rank, program_.dtype, rows, rank,
                  engine::RowStride(program_.dtype, rank)};
  engine::RoundRows(ops_, dh32, rank, dh);
  const Matrix x = LoraInput(node, batch, node.lora.dropout_scratch);
  engine::MatMulWeightGrad(ops_, dh, x, WeightGradient(node.lora.a), true);
  if (dx == nullptr) return;
  if (node.lora.rate == 0) {
    engine::MatMulInputGrad(ops_, dh, a, dx, a.k, true);
    return;
  }
  float* through_a = Floats(node.lora.dropout_scratch);  // reuses the buffer of drop(x), which is
                                                         // no longer needed
  engine::MatMulInputGrad(ops_, dh, a, through_a, a.k, false);
  Dropout(ops_, through_a, SourcesOf(batch), a.k, node.lora.rate, KeyOf(node, batch), dx, true);
}

void Executor::Zero(int32_t buffer) {
  constexpr int64_t kChunk = 1 << 18;
  std::byte* data = At(buffer);
  const int64_t bytes = program_.buffers[buffer].bytes;
  ops_.pool().ParallelFor((bytes + kChunk - 1) / kChunk, [&](int64_t i, int) {
    std::memset(data + i * kChunk, 0, static_cast<size_t>(std::min(kChunk, bytes - i * kChunk)));
  });
}

int32_t Executor::BufferOf(int32_t value) const {
  const Value& v = program_.values[value];
  return in_backward_ ? BackwardBuffer(v) : v.buffer;
}

Matrix Executor::MatrixOf(int32_t value) {
  const Value& v = program_.values[value];
  std::byte* data = At(BufferOf(value)) +
                    FirstRow(v) * v.stride * static_cast<int64_t>(engine::DTypeBytes(v.dtype));
  return {data, v.dtype, n_rows_, v.cols, v.stride};
}

Matrix Executor::HiddenOf(const Node& node) {
  const int64_t rank = program_.weight_specs[node.lora.a].n;
  const int64_t stride = engine::RowStride(program_.dtype, rank);
  const auto width = static_cast<int64_t>(engine::DTypeBytes(program_.dtype));
  return {At(node.saved) + first_row_ * stride * width, program_.dtype, n_rows_, rank, stride};
}

Matrix Executor::LoraInput(const Node& node, const ProgramBatch& batch, int32_t scratch) {
  const Matrix x = MatrixOf(node.inputs[0]);
  if (node.lora.rate == 0) return x;
  const Matrix dropped{At(scratch), x.dtype, x.rows, x.cols, x.stride};
  DropoutRounded(ops_, x, SourcesOf(batch), node.lora.rate, KeyOf(node, batch), dropped);
  return dropped;
}

float* Executor::F32Of(int32_t value) { return static_cast<float*>(MatrixOf(value).data); }

float* Executor::GradientOf(int32_t value) {
  const Value& v = program_.values[value];
  return v.gradient < 0 ? nullptr : Floats(v.gradient) + FirstRow(v) * v.cols;
}

std::span<const DropoutRow> Executor::SourcesOf(const ProgramBatch& batch) const {
  if (batch.sources.empty()) return {};
  return batch.sources.subspan(static_cast<size_t>(first_row_), static_cast<size_t>(n_rows_));
}

// A chunk begins at a whole byte: its rows are a multiple of eight, or it is the only chunk.
uint8_t* Executor::MaskOf(const Node& node) {
  const int64_t elements = first_row_ * program_.values[node.outputs[0]].cols;
  TANDEM_CHECK(elements % 8 == 0);
  return reinterpret_cast<uint8_t*>(At(node.saved)) + elements / 8;
}

PackedRelu& Executor::PackedOf(const Node& node) {
  std::vector<PackedRelu>& chunks = packed_[static_cast<size_t>(&node - program_.nodes.data())];
  return chunks[node.chunk < 0 ? 0 : static_cast<size_t>(first_row_ / program_.chunk_rows)];
}

float* Executor::WeightGradient(int32_t weight) {
  return program_.trained[weight] ? gradients_[weight] : nullptr;
}

const float* Executor::VectorOf(const Node& node, size_t i) const {
  return i < node.weights.size() ? weights_[node.weights[i]].vector : nullptr;
}

DropoutKey Executor::KeyOf(const Node& node, const ProgramBatch& batch) const {
  return {batch.dropout_seed, static_cast<uint32_t>(&node - program_.nodes.data())};
}

}  // namespace tandem::training
