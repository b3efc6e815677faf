#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/families/family.h"
#include "training/ops/router_loss.h"
#include "training/program/remat_options.h"
#include "training/program/tensor_split.h"

namespace tandem::training {

// A training step as data: a family's forward pass over `rows` tokens, and the backward pass
// derived from it. Record builds it once; executor.h runs it many times. Plain and immutable; knows
// neither weight values nor batches.

enum class OpKind : uint8_t {
  kEmbed,
  kEmbedPositions,
  kRmsNorm,
  kLayerNorm,
  kRound,
  kLinear,
  kRope,
  kAttention,
  kGatedActivation,
  kActivate,
  kColumns,
  kAdd,
  kMul,
  kSigmoid,
  kClamp,
  kScale,
  kSliceHeads,
  kJoinHeads,
  kDropout,
  kRoute,
  kExpertLinear,
  kCombine,
  kCausalConv,
  kGatedDelta,
  kSelectiveScan,
  kGate,
  kScaleExperts,
  kMix,
  kMatchMagnitude,
  kAboveCut,
  kScaleColumns,
  kSoftCap,
  kSpread,        // to ranks with parts of the following layers; gradients are summed
  kSumRanks,      // of their parts of a product; then a bias
  kCrossEntropy,  // the last
};
inline constexpr size_t kOpKinds = static_cast<size_t>(OpKind::kCrossEntropy) + 1;

// Bytes of the arena that live from one step to another. The lifetime pass sets the offset.
struct Buffer {
  std::string role;  // "value 3", "rstd", … for the printout
  int64_t bytes = 0;
  int32_t first_step = -1;
  int32_t last_step = -1;
  int64_t offset = 0;
};

// An activation [rows, cols]. f32 values are dense; values in the compute dtype have its row
// stride.
struct Value {
  engine::DType dtype = engine::DType::kF32;
  int64_t cols = 0;
  int64_t stride = 0;
  int32_t buffer = -1;
  int32_t remade = -1;    // buffer for the backward pass if the value is recomputed
  int32_t producer = -1;  // node
  bool chunked = false;   // lives within a chunk: its buffers hold `chunk_rows` rows
  bool divided = false;   // the rank's part of the rows (TensorPlace::divides_rows)
  bool needs_gradient = false;
  // Buffer of d(loss)/d(value), f32, dense; -1: none. Values share it when their gradients are
  // equal or can be summed in place: a rounded copy and its source, operands of an Add and its sum.
  int32_t gradient = -1;
};

// The buffer from which the backward pass reads a value.
inline int32_t BackwardBuffer(const Value& value) {
  return value.remade >= 0 ? value.remade : value.buffer;
}

// The adapter of a kLinear, kEmbed or kCrossEntropy: y += B . h with h = scale * (A . x)
// (engine/ops/lora.h). h is the node's `saved`, except that the head recomputes it. The backward
// pass recomputes dropped-out inputs.
struct LoraNode {
  int32_t a = -1;  // indices in the program's weights; -1: no adapter
  int32_t b = -1;
  // DoRA (engine/ops/dora.h), a kLinear only: y = factors * (W x + B . h) + bias.
  int32_t magnitude = -1;  // trained
  int32_t factors = -1;    // magnitude / norm of every output, then 1 / norm; the trainer's
  float scale = 1;
  float rate = 0;                 // of the dropout on A's input; h = scale * (A . drop(x))
  int32_t forward_scratch = -1;   // drop(x), with dropout
  int32_t remake_scratch = -1;    // of the recomputation
  int32_t backward_scratch = -1;  // dh, in f32 and in the compute dtype
  int32_t dropout_scratch = -1;   // drop(x) again, then the f32 gradient through A
  int32_t dora_scratch = -1;      // W x + B . h again, then its gradient
};

// The experts of a kExpertLinear. Its weights are n_experts matrices, then as many biases or none.
struct ExpertsNode {
  int64_t n_experts = 0;
  int64_t top_k = 0;
  // Each expert's adapter (a -1: none); empty: no expert has one. The node's `saved` holds h of
  // every slot, [rows, top_k] rows of the largest rank.
  std::vector<LoraNode> lora;
  int64_t lora_rank = 0;          // the largest
  bool trains_elsewhere = false;  // another rank adds trained biases, so gradients reach this node
};

struct Node {
  explicit Node(OpKind kind) : op(kind) {}

  OpKind op;
  std::vector<int32_t> inputs;   // values
  std::vector<int32_t> outputs;  // values
  std::vector<int32_t> weights;  // indices in the program's weights
  int32_t saved = -1;            // buffer: row statistics, h or a mask, for the backward pass
  int32_t forward_scratch = -1;  // buffers that live within one step
  int32_t remake_scratch = -1;   // forward_scratch of the recomputation
  int32_t backward_scratch = -1;

  float eps = 0;
  float rate = 0;
  float factor = 0;    // kScale; kClamp, kSoftCap: the limit; kMix: the offset of its weights;
                       // kMatchMagnitude, kAboveCut: the number of the same argument; kEmbed:
                       // alpha of NEFTune's noise, 0 for none
  float soft_cap = 0;  // kCrossEntropy
  int64_t first = 0;   // kColumns, kSliceHeads, kMix
  int64_t heads = 0;   // kSliceHeads, kJoinHeads
  int64_t length = 0;  // kRmsNorm without a weight: columns of a run
  size_t rope = 0;     // table
  engine::Activation activation = engine::Activation::kSilu;
  ActivationSave save = ActivationSave::kPlain;  // kActivate: compressed forms have a mask in
                                                 // `saved`
  // The columns it reads are this rank's part (tensor_split.h).
  bool is_part = false;
  bool divided = false;  // its inputs and outputs are the rank's part of the rows
  int32_t passing = 0;   // kSpread and kSumRanks nodes before this one
  int32_t chunk = -1;    // nodes with the same number run together, chunk by chunk of rows
  engine::AttentionSpec attention;
  LoraNode lora;              // kLinear; kExpertLinear uses its dropout rate and scratch buffers
  engine::RouterSpec router;  // kRoute
  ExpertsNode experts;        // kExpertLinear
  engine::ConvSpec conv;      // kCausalConv
  engine::DeltaSpec delta;    // kGatedDelta
  engine::ScanSpec scan;      // kSelectiveScan
  engine::GateForm gate = engine::GateForm::kSigmoid;  // kGate
};

// One backward instruction: the backward of a node, or its forward again.
struct BackwardStep {
  int32_t node = -1;
  bool remake = false;          // runs the node forward again, into the buffers `remade`
  std::vector<int32_t> zero;    // gradient buffers that get their first addition in this step
  std::vector<bool> overwrite;  // per input: first to write, and the op can overwrite
  std::vector<bool> copy;       // per input, kAdd: its gradient has its own buffer
};

// How an adapter changes a weight.
enum class LoraForm : uint8_t {
  kLinear,     // A and B of a linear layer or an expert
  kDora,       // A, B and magnitudes of a linear layer
  kEmbedding,  // A and B of a table of embeddings
  kHead,       // A and B of the head, which may be a tied table
  kWhole,      // a trained copy; of a tied table the one for embeddings
  kWholeHead,  // a trained copy of the head's matrix
};

// A weight that gets an adapter.
struct LoraTarget {
  int32_t weight = -1;  // in the family's list
  int64_t rank = 0;     // 0: a copy
  float scale = 1;      // alpha / rank, or alpha / sqrt(rank)
  LoraForm form = LoraForm::kLinear;
};

struct RecordOptions {
  int64_t rows = 0;          // tokens per micro-batch
  int64_t row_length = 0;    // tokens of one packed row; the length that attention FLOPs refer to
  int64_t max_segments = 1;  // of a micro-batch
  engine::DType dtype = engine::DType::kBF16;  // compute
  std::vector<bool> trained;                   // per weight; empty: all
  // With adapters only they are trained, and `trained` is empty. Their weights follow the family's
  // and the factors of DoRA (FactorSpecs): those of LoraSpecs.
  std::vector<LoraTarget> lora;
  RematOptions remat;
  RouterLossOptions router_loss;
  float lora_dropout = 0;   // on the input of A, while training
  float neftune_alpha = 0;  // of the noise on the tokens' embeddings, while training
  float z_loss = 0;         // factor of the squared log-sum-exp of the logits, while training
  TensorPlace tensor;       // records the part of this rank (tensor_split.h)
  bool head_twice = false;  // training reweighs (executor.h): counted as computed twice
};

struct Program {
  std::string family;
  engine::DType dtype = engine::DType::kBF16;
  int64_t rows = 0;
  int64_t row_length = 0;
  int64_t max_segments = 1;
  std::vector<engine::WeightSpec> weight_specs;  // the family's, then those of adapters
  std::vector<bool> trained;
  TensorSplit tensor;  // of these weights
  std::vector<Value> values;
  std::vector<Node> nodes;  // forward; the last is kCrossEntropy
  std::vector<BackwardStep> backward;
  std::vector<Buffer> buffers;
  int64_t arena_bytes = 0;
  RematPolicy remat = RematPolicy::kNone;
  ActivationSave save = ActivationSave::kPlain;
  int64_t chunk_rows = 0;    // rows of a chunk; 0: no chunks
  int64_t packed_bytes = 0;  // upper bound of the packed ReLU results, outside the arena
  bool head_twice = false;
  RouterLossOptions router_loss;
  float z_loss = 0;  // of the head, while training

  // The rank's part of rows that ranks divide: its first row, and the number.
  int64_t part_rows() const { return tensor.place.divides_rows ? rows / tensor.place.size : rows; }
  int64_t first_part_row() const {
    return tensor.place.divides_rows ? tensor.place.rank * part_rows() : 0;
  }

  int64_t forward_flops() const;
  int64_t training_flops() const;   // forward and backward of one micro-batch, without
                                    // recomputation
  int64_t recompute_flops() const;  // added by rematerialisation and head_twice
};

// The number of rows in a value's buffers.
inline int64_t RowsOf(const Program& program, const Value& value) {
  if (value.divided) return program.part_rows();
  return value.chunked ? program.chunk_rows : program.rows;
}
// The number of rows that a node computes, in all chunks together.
inline int64_t RowsOf(const Program& program, const Node& node) {
  return node.divided ? program.part_rows() : program.rows;
}

// The end (exclusive) of the backward steps from `first` that run together chunk by chunk; first +
// 1 when that step runs over all rows.
size_t ChunkRunEnd(const Program& program, size_t first);

// The trained weights of each target in order, named as in a PEFT file: A and B, then magnitudes
// with DoRA; or the copy.
std::vector<engine::WeightSpec> LoraSpecs(const std::vector<engine::WeightSpec>& base,
                                          const std::vector<LoraTarget>& targets);
// The number of a target's weights.
int64_t LoraSpecCount(const LoraTarget& target);
// One vector for each target with DoRA, in order: LoraNode::factors.
std::vector<engine::WeightSpec> FactorSpecs(const std::vector<engine::WeightSpec>& base,
                                            const std::vector<LoraTarget>& targets);

// Records the family's forward pass and derives the rest of the program. With several ranks on the
// tensor axis the weights are this rank's parts; throws as PartOfConfig and CompareSpecs. Throws
// kInvalidArgument when they divide the rows and cannot do so equally.
Program Record(const engine::FamilySpec& family, const engine::ModelConfig& config,
               const RecordOptions& options);

// One line per step: op, operands, weights, bytes and FLOPs; then the arena.
std::string Print(const Program& program);

// Bytes of values and statistics that live from the forward to the backward pass, and bytes of
// recomputed values.
struct KeptBytes {
  int64_t kept = 0;
  int64_t remade = 0;
};
KeptBytes CountKept(const Program& program);

// The properties of an op that the passes need; one entry per OpKind.
struct OpDescription {
  const char* name;
  bool reads_inputs_backward;   // inputs must live until the backward step
  bool reads_outputs_backward;  // likewise outputs
  bool can_overwrite;           // backward can write its first gradient instead of adding to zeros
  int64_t (*forward_flops)(const Program& program, const Node& node);
  int64_t (*backward_flops)(const Program& program, const Node& node);
};
const OpDescription& Describe(OpKind op);

// Whether the backward step of a node reads one of its inputs. A linear layer does only for weight
// gradients and adapters; a ReLU with a mask does not. Experts always read their routing.
bool ReadsInputBackward(const Program& program, const Node& node, size_t input);

// Bytes of the backward scratch of a kExpertLinear over `rows` rows.
int64_t ExpertBackwardBytes(const Program& program, const Node& node, int64_t rows);

// Bytes per row of a kExpertLinear's dropout scratch: drop(x), then the f32 gradient through A.
int64_t ExpertDropoutBytes(engine::DType dtype, int64_t cols);

// Whether the backward step of a node writes the gradient of an input that has one. Experts pass
// none to their routing, whose ids are constants.
bool PassesGradient(const Node& node, size_t input);
// Whether an op mixes rows of a sequence: attention, a convolution or a recurrence.
bool MixesRows(OpKind op);

}  // namespace tandem::training
