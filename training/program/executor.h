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

// One micro-batch: `rows` tokens in packed segments that cover all rows in order. Padding is a
// segment of its own with weight 0.
struct ProgramBatch {
  std::span<const TokenId> tokens;      // [rows]
  std::span<const int32_t> positions;   // [rows], from 0 in every segment
  std::span<const Segment> segments;    // at most the program's max_segments
  std::span<const TokenId> targets;     // [rows]; -1 where the row is not trained
  std::span<const float> weights;       // [rows]; 0 where the row is not trained
  std::span<const DropoutRow> sources;  // [rows]; only programs with dropout read it
  uint64_t dropout_seed = 0;
};

// Computes the weights of a batch's rows from the log-probabilities of their targets. Rows that are
// not trained have weight 0 and keep it.
using Reweigh =
    std::function<void(std::span<const float> token_logprobs, std::span<float> weights)>;

// Runs a program. Allocates the arena at construction; the loss workspace, packed ReLU results and
// Reweigh's buffers grow on first use. Owned by one thread; borrows all its arguments.
class Executor {
 public:
  // `gradients[i]` is [n, k] f32 for trained weights, which Train adds to; ignored for frozen ones.
  // `ropes` are the family's tables.
  Executor(const Program& program, engine::OpsContext& ops,
           std::span<const engine::RopeTable> ropes, const engine::Weights& weights,
           std::span<float* const> gradients);

  // Forward and backward: adds d(scale * sum of weighted losses) to the gradients. With `reweigh`
  // the head first runs forward, and `reweigh` then sets the weights of the rows.
  CrossEntropyResult Train(const ProgramBatch& batch, float scale, const Reweigh& reweigh = {});
  // Forward only, without dropout. `token_logprobs` [rows] may be null.
  CrossEntropyResult Evaluate(const ProgramBatch& batch, float* token_logprobs);
  // Logits of all rows [rows, vocab_size], without dropout. Equal to serving's.
  void ForwardLogits(const ProgramBatch& batch, float* logits);

  const Program& program() const { return program_; }
  // Bytes of the packed ReLU results since the last Train.
  int64_t packed_bytes() const;
  // Records the time of every later node in `trace`; null: stops recording.
  void set_trace(Trace* trace) { trace_ = trace; }

 private:
  void Check(const ProgramBatch& batch) const;
  void Forward(const ProgramBatch& batch, bool dropout);
  void Backward(const ProgramBatch& batch);
  // Calls run() once per chunk of rows. The other functions then see only these rows.
  template <class Run>
  void OverChunks(const Run& run);
  // `dropout`: true in training, also for recomputation.
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
  // The value's present buffer. The backward pass reads recomputed values from another one.
  int32_t BufferOf(int32_t value) const;
  engine::Matrix MatrixOf(int32_t value);
  engine::Matrix HiddenOf(const Node& node);  // h of a node's adapter
  // The input of a node's A: x, or with dropout drop(x), written to `scratch`.
  engine::Matrix LoraInput(const Node& node, const ProgramBatch& batch, int32_t scratch);
  float* F32Of(int32_t value);
  float* GradientOf(int32_t value);  // null if it has none
  // Index of the chunk's first row in a value's buffers.
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
  int64_t first_row_ = 0;  // of the chunk; 0 outside of chunks
  int64_t n_rows_;
  std::vector<std::vector<PackedRelu>> packed_;  // by node, by chunk; empty for nodes without
                                                 // packing
  CrossEntropyWorkspace head_workspace_;
  std::vector<float> token_logprobs_;  // [rows], for Reweigh
  std::vector<float> token_weights_;   // [rows]
  Trace* trace_ = nullptr;
};

}  // namespace tandem::training
