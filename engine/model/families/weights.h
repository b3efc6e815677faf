#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/ops/experts.h"
#include "engine/ops/matmul.h"

namespace tandem::engine {

enum class WeightKind : uint8_t {
  kMatrix,     // a linear layer [out, in]; panels
  kEmbedding,  // a table [vocab, hidden]; panels; gathered and, when tied, also the head
  kVector,     // norm scale or bias; f32
};

// A weight's place in a larger tensor: experts stacked along the first axis, or matrices whose rows
// one tensor holds together. Output i of the weight is row first_row + i * row_step of slice
// `index`.
struct StoredPart {
  std::string tensor;  // the larger tensor's name
  int64_t index = -1;  // along the first axis; -1: the tensor has no such axis
  int64_t first_row = 0;
  int64_t row_step = 1;     // 2: the rows of two matrices alternate
  bool transposed = false;  // the slice is [inputs, outputs]: rows are its columns
  bool is_written = true;   // false: of another class; writers keep the weight's own name
};

// How one parameter is stored in a checkpoint and used by a family. A family lists its weights in
// a fixed order; that index identifies the weight everywhere (packing, training, checkpoints).
struct WeightSpec {
  std::string name;  // as in the checkpoint (Hugging Face's name)
  WeightKind kind = WeightKind::kMatrix;
  std::vector<int64_t> source_shape;  // as in the checkpoint
  SourceLayout layout = SourceLayout::kOutIn;
  int64_t n = 0;       // outputs (rows); length of a vector
  int64_t k = 1;       // inputs (columns)
  bool decays = true;  // weight decay applies (matrices and embeddings)
  // Added where a kVector is used, and nowhere else: Gemma stores norm scales minus 1. The stored,
  // trained, decayed and exported number is the checkpoint's value; its gradient is the same.
  float offset = 0;
  std::vector<std::string> aliases = {};  // other names in checkpoints
  // Places in larger tensors, for checkpoints that have none of the names. The first one that is
  // written is the published form, which writers for Hugging Face restore.
  std::vector<StoredPart> parts = {};
};

// One parameter, ready for LayerOps. Families pass it on; only ops read the fields.
struct Weight {
  int32_t index = -1;  // into the family's weight list
  const WeightSpec* spec = nullptr;
  PanelMatrix panels;             // kMatrix, kEmbedding
  const float* vector = nullptr;  // kVector
};

// The matrices that engine/ops/experts.h reads. Borrows both spans' elements.
inline ExpertMatrices ExpertMatricesOf(std::span<const Weight> experts,
                                       std::span<const Weight> biases) {
  ExpertMatrices out;
  out.n_experts = static_cast<int64_t>(experts.size());
  // One captured pointer fits into std::function without an allocation.
  out.weight = [first = experts.data()](int64_t e) -> const PanelMatrix& {
    return first[e].panels;
  };
  if (!biases.empty()) {
    out.bias = [first = biases.data()](int64_t e) { return first[e].vector; };
  }
  return out;
}

// All parameters of one model in list order. Borrows the bytes; the owner keeps them alive.
using Weights = std::vector<Weight>;

}  // namespace tandem::engine
