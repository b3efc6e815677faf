#pragma once

#include <string>
#include <vector>

#include "engine/formats/gguf/gguf.h"
#include "engine/formats/gguf/gguf_names.h"
#include "engine/formats/stored/stored_tensor.h"

namespace tandem::engine {

// Weights that a GGUF file has as several tensors, in another order, or as other numbers.

// -exp(x), computed in f64.
float NegativeExp(float x);
// The vector whose NegativeExp the tensor has. Among numbers that have the same one, that of bf16
// comes first, so that models of bf16 come back bit for bit. Throws kDataLoss naming the tensor for
// a number that is not below 0.
StoredTensor UndoNegativeExp(const GgufFile& file, const GgufFile::Tensor& tensor);

struct GgufPiece {
  std::string_view tensor;  // for messages
  StoredTensor stored;
  const GgufOrder* rows = nullptr;  // null: the family's, of a weight with one piece
  const GgufOrder* columns = nullptr;
};
// The weight of one or more pieces, in the family's order. Throws kDataLoss naming a tensor whose
// size differs from the config's, or the weight when pieces are missing.
StoredTensor JoinPieces(const GgufFile& file, const std::string& weight,
                        std::vector<GgufPiece> pieces, const ModelConfig& config);

// The expansion of DeepSeek's latent, [heads * (key + value), latent], of its two parts: keys
// [heads, latent, key] and values [heads, value, latent]. Throws kDataLoss naming the tensors when
// their shapes do not fit each other.
StoredTensor JoinLatentParts(const GgufFile& file, const GgufFile::Tensor& keys,
                             const GgufFile::Tensor& values);

}  // namespace tandem::engine
