#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/ops/matmul.h"

namespace tandem::engine {

enum class WeightKind : uint8_t {
  kMatrix,     // a linear layer [out, in]; panels
  kEmbedding,  // a table [vocab, hidden]; panels; gathered and, when tied, also the head
  kVector,     // norm scale or bias; f32
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
};

// One parameter, ready for LayerOps. Families pass it on; only ops read the fields.
struct Weight {
  int32_t index = -1;  // into the family's weight list
  const WeightSpec* spec = nullptr;
  PanelMatrix panels;             // kMatrix, kEmbedding
  const float* vector = nullptr;  // kVector
};

// All parameters of one model in list order. Borrows the bytes; the owner keeps them alive.
using Weights = std::vector<Weight>;

}  // namespace tandem::engine
