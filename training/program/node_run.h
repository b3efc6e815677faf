#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/ops/ops_context.h"
#include "training/ops/pointwise.h"
#include "training/ops/relu_save.h"
#include "training/ops/router_loss.h"
#include "training/program/program.h"
#include "training/program/program_batch.h"
#include "training/program/tensor_exchange.h"

namespace tandem::training {

// The memory of a running program, as the bodies of its nodes see it: values, gradients and
// weights of the rows that run now. Owned by the Executor; borrows its arguments. One thread.
class NodeRun {
 public:
  NodeRun(const Program& program, engine::OpsContext& ops, std::span<const engine::RopeTable> ropes,
          const engine::Weights& weights, std::span<float* const> gradients);

  const Program& program() const { return program_; }
  engine::OpsContext& ops() const { return ops_; }
  const ProgramBatch& batch() const { return *batch_; }
  // Those of the present rows.
  std::span<const TokenId> Tokens() const { return Present(batch_->tokens); }
  std::span<const int32_t> Positions() const { return Present(batch_->positions); }
  // True in training, also for recomputation: dropout draws, and data for gradients is saved.
  bool training() const { return training_; }
  bool in_backward() const { return in_backward_; }
  // Rows that run now: all, those of a chunk, or the rank's part of them.
  int64_t n_rows() const { return n_rows_; }
  // The first of them: in buffers of all rows or of the rank's part, and in the batch.
  int64_t first_row() const { return first_row_; }
  int64_t batch_row() const { return batch_row_; }

  // The routers of the present forward pass, in training.
  RouterTally& routers() { return routers_; }
  const RouterTally& routers() const { return routers_; }
  // The factor of the routers' losses: this batch's share of a step.
  double router_share() const { return router_share_; }
  void set_router_share(double share) { router_share_ = share; }

  void BeginForward(const ProgramBatch& batch, bool training);
  void BeginBackward() { in_backward_ = true; }
  // Sets the rows that run now to those of a node. A node of a chunk has those of OverChunks.
  void Enter(const Node& node);
  // Calls run() once per chunk of rows.
  template <class Run>
  void OverChunks(const Run& run) {
    for (first_row_ = 0; first_row_ < program_.rows; first_row_ += program_.chunk_rows) {
      n_rows_ = std::min(program_.chunk_rows, program_.rows - first_row_);
      batch_row_ = first_row_;
      run();
    }
    first_row_ = batch_row_ = 0;
    n_rows_ = program_.rows;
  }

  const Value& ValueOf(int32_t value) const { return program_.values[value]; }
  // The present rows of a value, or the rank's part of its rows. The backward pass reads recomputed
  // values from another buffer.
  engine::Matrix MatrixOf(int32_t value);
  float* F32Of(int32_t value) { return static_cast<float*>(MatrixOf(value).data); }
  float* GradientOf(int32_t value);  // null if it has none
  std::byte* At(int32_t buffer) { return arena_.data() + program_.buffers[buffer].offset; }
  float* Floats(int32_t buffer) { return reinterpret_cast<float*>(At(buffer)); }
  // The node's scratch of a forward run, or of its recomputation.
  std::byte* ForwardScratch(const Node& node) {
    return At(in_backward_ ? node.remake_scratch : node.forward_scratch);
  }
  // A node's output gradient in the compute dtype: its f32 buffer, or a rounded copy in the node's
  // backward scratch.
  engine::Matrix RoundedGradient(const Node& node);
  void Zero(int32_t buffer);

  const engine::PanelMatrix& PanelsOf(int32_t weight) const { return weights_[weight].panels; }
  const engine::PanelMatrix& PanelsOf(const Node& node) const { return PanelsOf(node.weights[0]); }
  const float* VectorAt(int32_t weight) const { return weights_[weight].vector; }
  // The f32 vector of a node's i-th weight; null without one.
  const float* VectorOf(const Node& node, size_t i) const;
  float* WeightGradient(int32_t weight);  // null when frozen
  const engine::RopeTable& RopeOf(const Node& node) const { return ropes_[node.rope]; }

  // Adds the values of the ranks of the tensor axis (tensor_split.h).
  void SumRanks(float* values, int64_t count) const;
  // The same for the rank's part of the rows alone, which it returns; the others are lost.
  float* SumOwnRows(float* values, int64_t cols) const;
  // Gathers all rows, of `bytes` each, from the ranks' parts.
  void GatherRows(const void* mine, int64_t bytes, void* all) const;
  void set_exchange(TensorExchange exchange) { exchange_ = std::move(exchange); }

  std::span<const DropoutRow> Sources() const;
  DropoutKey KeyOf(const Node& node) const;
  // The saved form of an activation function.
  uint8_t* MaskOf(const Node& node);
  PackedRelu& PackedOf(const Node& node);
  int64_t packed_bytes() const;

 private:
  template <class T>
  std::span<T> Present(std::span<T> rows) const {
    return rows.subspan(static_cast<size_t>(batch_row_), static_cast<size_t>(n_rows_));
  }
  // Index of the chunk's first row in a value's buffers.
  int64_t FirstRow(const Value& value) const { return value.chunked ? 0 : first_row_; }

  const Program& program_;
  engine::OpsContext& ops_;
  std::span<const engine::RopeTable> ropes_;
  const engine::Weights& weights_;
  std::vector<float*> gradients_;
  AlignedBuffer arena_;
  const ProgramBatch* batch_ = nullptr;
  bool training_ = false;
  bool in_backward_ = false;
  int64_t first_row_ = 0;  // of the chunk; 0 outside of chunks
  int64_t batch_row_ = 0;
  int64_t n_rows_;
  TensorExchange exchange_;
  RouterTally routers_;
  double router_share_ = 1;
  // By node, by chunk; empty for nodes without packing.
  std::vector<std::vector<PackedRelu>> packed_;
};

}  // namespace tandem::training
