#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/config.h"

namespace tandem::convert {

// How MaxText names, arranges and scales the parameters of a model: one table, read in both
// directions (maxtext_map.cc; the numbers in maxtext_numbers.h).

// What a number is multiplied with, or has added, on its way to MaxText; all in f32.
struct MaxTextArithmetic {
  float factor = 1;
  float added = 0;
  bool IsNone() const { return factor == 1 && added == 0; }
};

// A parameter of MaxText and the tensors of Hugging Face in it.
struct MaxTextLeaf {
  std::string name;                  // "decoder.layers.mlp.wi_0.kernel"
  std::vector<int64_t> shape;        // a scanned one has its layers on axis 1
  std::vector<std::string> tensors;  // one for each layer in it, in their order; of no layer: one
  std::vector<int64_t> tensor_shape;
  bool is_scanned = false;
  bool is_transposed = false;    // [out, in] in Hugging Face, [in, out] here
  int64_t rotated_head_dim = 0;  // the outputs of a head lie as the pairs that rope rotates; 0: not
  int64_t group = 1;             // inputs that share a step of axis 0
  bool has_vocabulary = false;   // the tensor's rows: they may be padded here, or cut
  MaxTextArithmetic arithmetic;

  // One tensor, whose numbers lie in its order.
  bool IsTable() const { return !is_transposed && tensors.size() == 1; }
  int64_t n_layers() const { return static_cast<int64_t>(tensors.size()); }
  // The axes of one layer here, before heads are told apart: [rows, columns].
  int64_t rows() const;
  int64_t columns() const;
};

struct MaxTextLayout {
  bool is_scanned = true;
  // Llama 3.1 and later: q and k lie as pairs. MaxText's own converter of Llama 3 ("llama3-8b")
  // leaves them as Hugging Face has them.
  bool rotates_pairs = true;
};

// All parameters of such a model, those of a kind together and ascending by layer. Every tensor
// that the family lists is in exactly one. Throws kUnsupported for a family that is not in the
// table, and for what MaxText's tree has no place for.
std::vector<MaxTextLeaf> MaxTextLeaves(const engine::ModelConfig& config,
                                       const MaxTextLayout& layout);

// What MaxText computes in another way than the model's family, in words; empty: nothing.
std::string MaxTextCaveat(const engine::ModelConfig& config);

// Families of the table: "gemma2, gemma3, …".
std::string MaxTextFamilies();
// By the name of a model of MaxText ("llama3-8b", "llama3.1-8b"): whether its q and k lie as pairs.
// Throws kInvalidArgument for a name of no Llama.
bool RotatesPairs(const std::string& maxtext_model);

}  // namespace tandem::convert
