#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "convert/formats/maxtext/maxtext_arithmetic.h"
#include "convert/formats/maxtext/maxtext_map.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {

// Parameters of MaxText and tensors of Hugging Face, one made of the other; what becomes of each
// number is maxtext_arithmetic.h.

// A piece of a tensor: rows [first, last).
struct RowRange {
  int64_t first = 0;
  int64_t last = 0;
};

// Puts rows of a layer's tensor, whose bytes `tensor` are, where they are in the leaf; where
// outputs lie as pairs, those of whole heads. Rows of a vocabulary beyond the tensor's become what
// zeros become. False: the leaf's type does not have some value. Any thread; ranges that do not
// overlap at the same time.
bool TensorToLeaf(const MaxTextLeaf& leaf, int64_t layer, RowRange rows,
                  std::span<const std::byte> tensor, engine::DType tensor_dtype,
                  engine::DType leaf_dtype, std::span<std::byte> out);

// The way back, of some rows of the tensor, to which `out` belongs; where outputs lie as pairs, of
// whole heads. A vector that is one of several in its parameter is one row. Any thread.
bool LeafToTensor(const MaxTextLeaf& leaf, int64_t layer, RowRange rows,
                  std::span<const std::byte> bytes, engine::DType leaf_dtype,
                  engine::DType tensor_dtype, const Corrections& corrections,
                  std::span<std::byte> out);

// The same of some numbers of a parameter that is a tensor as it lies (IsTable), from the first on:
// `run` and `out` are theirs.
bool RunToTensor(const MaxTextLeaf& leaf, int64_t first, std::span<const std::byte> run,
                 engine::DType leaf_dtype, engine::DType tensor_dtype,
                 const Corrections& corrections, std::span<std::byte> out);

// Whether all that is done with these numbers is to move them.
bool IsUnchanged(const MaxTextLeaf& leaf, engine::DType leaf_dtype, engine::DType tensor_dtype);

// Of a tensor that goes into a leaf of that type: how many of its numbers would not come back by
// themselves, and the largest difference.
struct Loss {
  int64_t changed = 0;
  double max_abs = 0;
  void Add(const Loss& other);
};
Loss LossOf(const MaxTextArithmetic& arithmetic, engine::DType leaf_dtype,
            std::span<const std::byte> tensor, engine::DType tensor_dtype);
std::vector<int32_t> CorrectionSteps(const MaxTextArithmetic& arithmetic, engine::DType leaf_dtype,
                                     std::span<const std::byte> tensor, engine::DType tensor_dtype);

}  // namespace tandem::convert
