#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/families/config.h"

namespace tandem::convert {

// Maps a model's parameters to MaxText: names, shapes and scales. The family's MaxTextTree serves
// both directions (the conversion of numbers is in maxtext_numbers.h).

// Scales a number on its way to MaxText by a factor or a summand, in f32.
struct MaxTextArithmetic {
  float factor = 1;
  float added = 0;
  bool IsNone() const { return factor == 1 && added == 0; }
};

// One MaxText parameter and the Hugging Face tensors in it.
struct MaxTextLeaf {
  std::string name;                  // "decoder.layers.mlp.wi_0.kernel"
  std::vector<int64_t> shape;        // experts are axis 0; scanned: layers are axis 1
  std::vector<std::string> tensors;  // ascending by expert, then by layer
  std::vector<int64_t> tensor_shape;
  bool is_scanned = false;
  int64_t n_experts = 0;       // 0: the leaf has no axis of experts
  int64_t inner_layers = 0;    // scanned: size of a second axis of layers, axis 2; 0: none
  bool is_transposed = false;  // [out, in] in Hugging Face, [in, out] here
  // If > 0, a head's outputs are interleaved as the pairs that rope rotates.
  int64_t rotated_head_dim = 0;
  int64_t group = 1;            // inputs per step of axis 0
  bool has_vocabulary = false;  // rows are a vocabulary, which may be padded or cut here
  MaxTextArithmetic arithmetic;

  // Whether the leaf is one tensor in the same element order.
  bool IsTable() const { return !is_transposed && tensors.size() == 1; }
  int64_t n_tensors() const { return static_cast<int64_t>(tensors.size()); }
  // Axes of one tensor in the leaf, with heads merged: [rows, columns].
  int64_t rows() const;
  int64_t columns() const;
};

struct MaxTextLayout {
  bool is_scanned = true;
  // q and k are interleaved as pairs; false: they have Hugging Face's order (MaxTextForm).
  bool rotates_pairs = true;
};

// Lists the parameters of a model, grouped by kind and ascending by layer. Every tensor of the
// family is in exactly one. Throws kUnsupported for a family without a MaxTextTree and for a model
// that MaxText's tree cannot hold.
std::vector<MaxTextLeaf> MaxTextLeaves(const engine::ModelConfig& config,
                                       const MaxTextLayout& layout);

// Describes where MaxText computes differently from the model's family; empty if nowhere.
std::string MaxTextCaveat(const engine::ModelConfig& config);

// Names the families that have a MaxTextTree, separated by commas.
std::string MaxTextFamilies();
// Names a MaxText model of each form, for messages and --help: "x-8b or y-8b".
std::string MaxTextFormExamples();
// Whether a MaxText model of this name has q and k in pairs; true for an empty name. Throws
// kInvalidArgument for a name whose family has one form.
bool RotatesPairs(const std::string& maxtext_model);

}  // namespace tandem::convert
