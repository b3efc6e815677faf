#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/ops/ops_context.h"
#include "training/observe/trace.h"
#include "training/ops/attention.h"
#include "training/ops/cross_entropy.h"
#include "training/ops/pointwise.h"
#include "training/ops/relu_save.h"
#include "training/program/program.h"

namespace tandem::training {

// One micro-batch: `rows` tokens in packed segments that cover all rows in order (padding is a
// segment of its own with weight 0).
struct ProgramBatch {
  std::span<const TokenId> tokens;      // [rows]
  std::span<const int32_t> positions;   // [rows], from 0 in every segment
  std::span<const Segment> segments;    // at most the program's max_segments
  std::span<const TokenId> targets;     // [rows]; -1 where the row is not trained
  std::span<const float> weights;       // [rows]; 0 where the row is not trained
  std::span<const DropoutRow> sources;  // [rows]; only programs with dropout read it
  uint64_t dropout_seed = 0;
  uint32_t epoch = 0;
};

// Makes the weights of a batch's rows from the log-probabilities of their targets; rows that are
// not trained have weight 0 and keep it.
using Reweigh =
    std::function<void(std::span<const float> token_logprobs, std::span<float> weights)>;

// Runs a program. All memory but that of Reweigh is taken at construction. Owned by one thread;
// borrows everything it is given.
class Executor {
 public:
  // `gradients[i]` is [n, k] f32 for trained weights (added to) and ignored for frozen ones.
  // `ropes` are the family's tables.
  Executor(const Program& program, engine::OpsContext& ops,
           std::span<const engine::RopeTable> ropes, const engine::Weights& weights,
           std::span<float* const> gradients);

  // Forward and backward: adds d(scale * sum of weighted losses) to the gradients. With `reweigh`
  // the head runs forward first, and the batch's weights are what it then makes of them.
  CrossEntropyResult Train(const ProgramBatch& batch, float scale, const Reweigh& reweigh = {});
  // Forward only, dropout off. `token_logprobs` [rows] may be null.
  CrossEntropyResult Evaluate(const ProgramBatch& batch, float* token_logprobs);
  // Logits of all rows [rows, vocab_size], dropout off: what serving computes, by the program.
  void ForwardLogits(const ProgramBatch& batch, float* logits);

  const Program& program() const { return program_; }
  // Bytes of the packed results of ReLU since the last Train.
  int64_t packed_bytes() const;
  // Where the time of every node is recorded from now on; null: nowhere.
  void set_trace(Trace* trace) { trace_ = trace; }

 private:
  void Check(const ProgramBatch& batch) const;
  void Forward(const ProgramBatch& batch, bool dropout);
  void Backward(const ProgramBatch& batch);
  // Calls run() once per chunk of rows, which all else here then sees alone.
  template <class Run>
  void OverChunks(const Run& run);
  // `dropout`: in training, also where it is done again.
  void ForwardNode(const Node& node, const ProgramBatch& batch, bool dropout);
  void ForwardActivation(const Node& node, bool training);
  void ForwardLinear(const Node& node, const ProgramBatch& batch, bool dropout);
  void ForwardNorm(const Node& node);
  CrossEntropyResult Head(const ProgramBatch& batch, std::span<const float> weights, float scale,
                          bool train, float* token_logprobs);
  CrossEntropyResult ReweighedHead(const ProgramBatch& batch, float scale, const Reweigh& reweigh);
  void BackwardNode(const BackwardStep& step, const ProgramBatch& batch);
  void BackwardNorm(const Node& node, const float* dy, float* dx);
  void BackwardActivation(const Node& node, const float* dy, float* dx);
  void BackwardAdd(const BackwardStep& step, const float* dy);
  void ForwardLora(const Node& node, const ProgramBatch& batch, bool dropout);
  void BackwardLinear(const BackwardStep& step, const ProgramBatch& batch);
  void BackwardLora(const Node& node, const engine::Matrix& dy, const ProgramBatch& batch,
                    float* dx);
  void Zero(int32_t buffer);

  std::byte* At(int32_t buffer) { return arena_.data() + program_.buffers[buffer].offset; }
  float* Floats(int32_t buffer) { return reinterpret_cast<float*>(At(buffer)); }
  // Where a value lies now: in the backward pass recomputed ones have moved.
  int32_t BufferOf(int32_t value) const;
  engine::Matrix MatrixOf(int32_t value);
  engine::Matrix HiddenOf(const Node& node);  // h of a node's adapter
  // What A of a node's adapter reads: x, or with dropout x dropped into `scratch`.
  engine::Matrix LoraInput(const Node& node, const ProgramBatch& batch, int32_t scratch);
  float* F32Of(int32_t value);
  float* GradientOf(int32_t value);  // null without
  // Rows into a value's buffers where the chunk begins.
  int64_t FirstRow(const Value& value) const { return value.chunked ? 0 : first_row_; }
  std::span<const DropoutRow> SourcesOf(const ProgramBatch& batch) const;
  uint8_t* MaskOf(const Node& node);
  PackedRelu& PackedOf(const Node& node);
  float* WeightGradient(int32_t weight);  // null when frozen
  const float* VectorOf(const Node& node, size_t i) const;
  DropoutKey KeyOf(const Node& node, const ProgramBatch& batch) const;

  const Program& program_;
  engine::OpsContext& ops_;
  std::span<const engine::RopeTable> ropes_;
  const engine::Weights& weights_;
  std::vector<float*> gradients_;
  AlignedBuffer arena_;
  bool in_backward_ = false;
  int64_t first_row_ = 0;  // of the chunk; all rows outside of chunks
  int64_t n_rows_;
  std::vector<std::vector<PackedRelu>> packed_;  // by node, by chunk; empty where nothing is
  CrossEntropyWorkspace head_workspace_;
  std::vector<float> token_logprobs_;  // [rows], of Reweigh
  std::vector<float> token_weights_;   // [rows]
  Trace* trace_ = nullptr;
};

}  // namespace tandem::training
