#include "training/program/node_run.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/ops/rows.h"

namespace tandem::training {

using engine::Matrix;

NodeRun::NodeRun(const Program& program, engine::OpsContext& ops,
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

void NodeRun::BeginForward(const ProgramBatch& batch, bool training) {
  batch_ = &batch;
  training_ = training;
  in_backward_ = false;
  routers_.Clear();
}

void NodeRun::Enter(const Node& node) {
  if (node.chunk >= 0) return;
  first_row_ = 0;
  n_rows_ = RowsOf(program_, node);
  batch_row_ = node.divided ? program_.first_part_row() : 0;
}

Matrix NodeRun::MatrixOf(int32_t value) {
  const Value& v = program_.values[value];
  std::byte* data = At(in_backward_ ? BackwardBuffer(v) : v.buffer) +
                    FirstRow(v) * v.stride * static_cast<int64_t>(engine::DTypeBytes(v.dtype));
  return {data, v.dtype, v.divided ? program_.part_rows() : n_rows_, v.cols, v.stride};
}

float* NodeRun::GradientOf(int32_t value) {
  const Value& v = program_.values[value];
  return v.gradient < 0 ? nullptr : Floats(v.gradient) + FirstRow(v) * v.cols;
}

Matrix NodeRun::RoundedGradient(const Node& node) {
  float* dy = GradientOf(node.outputs[0]);
  const int64_t cols = program_.values[node.outputs[0]].cols;
  if (program_.dtype == engine::DType::kF32) {
    return {dy, engine::DType::kF32, n_rows_, cols, cols};
  }
  const Matrix rounded{At(node.backward_scratch), program_.dtype, n_rows_, cols,
                       engine::RowStride(program_.dtype, cols)};
  engine::RoundRows(ops_, dy, cols, rounded);
  return rounded;
}

void NodeRun::Zero(int32_t buffer) {
  constexpr int64_t kChunk = 1 << 18;
  std::byte* data = At(buffer);
  const int64_t bytes = program_.buffers[buffer].bytes;
  ops_.pool().ParallelFor((bytes + kChunk - 1) / kChunk, [&](int64_t i, int) {
    std::memset(data + i * kChunk, 0, static_cast<size_t>(std::min(kChunk, bytes - i * kChunk)));
  });
}

const float* NodeRun::VectorOf(const Node& node, size_t i) const {
  return i < node.weights.size() ? weights_[node.weights[i]].vector : nullptr;
}

float* NodeRun::WeightGradient(int32_t weight) {
  return program_.trained[weight] ? gradients_[weight] : nullptr;
}

std::span<const DropoutRow> NodeRun::Sources() const {
  if (batch_->sources.empty()) return {};
  return Present(batch_->sources);
}

// As without a tensor axis, whose nodes do not count. Ranks draw their own columns apart.
DropoutKey NodeRun::KeyOf(const Node& node) const {
  const int64_t number = &node - program_.nodes.data() - node.passing;
  const int64_t apart =
      node.is_part ? program_.tensor.place.rank * static_cast<int64_t>(program_.nodes.size()) : 0;
  return {batch_->dropout_seed, static_cast<uint32_t>(number + apart)};
}

void NodeRun::SumRanks(float* values, int64_t count) const {
  TANDEM_CHECK(exchange_.sum != nullptr);
  exchange_.sum({values, static_cast<size_t>(count)});
}

float* NodeRun::SumOwnRows(float* values, int64_t cols) const {
  TANDEM_CHECK(exchange_.sum_parts != nullptr);
  exchange_.sum_parts({values, static_cast<size_t>(program_.rows * cols)});
  return values + program_.first_part_row() * cols;
}

void NodeRun::GatherRows(const void* mine, int64_t bytes, void* all) const {
  TANDEM_CHECK(exchange_.gather != nullptr);
  exchange_.gather(
      {static_cast<const std::byte*>(mine), static_cast<size_t>(program_.part_rows() * bytes)},
      {static_cast<std::byte*>(all), static_cast<size_t>(program_.rows * bytes)});
}

// A chunk begins at a whole byte: its rows are a multiple of eight, or it is the only chunk.
uint8_t* NodeRun::MaskOf(const Node& node) {
  const int64_t elements = first_row_ * program_.values[node.outputs[0]].cols;
  TANDEM_CHECK(elements % 8 == 0);
  return reinterpret_cast<uint8_t*>(At(node.saved)) + elements / 8;
}

PackedRelu& NodeRun::PackedOf(const Node& node) {
  std::vector<PackedRelu>& chunks = packed_[static_cast<size_t>(&node - program_.nodes.data())];
  return chunks[node.chunk < 0 ? 0 : static_cast<size_t>(first_row_ / program_.chunk_rows)];
}

int64_t NodeRun::packed_bytes() const {
  int64_t bytes = 0;
  const auto width = static_cast<int64_t>(engine::DTypeBytes(program_.dtype));
  for (const std::vector<PackedRelu>& chunks : packed_) {
    for (const PackedRelu& packed : chunks) bytes += packed.count * width;
  }
  return bytes;
}

}  // namespace tandem::training
