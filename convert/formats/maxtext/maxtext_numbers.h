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

// Converts between MaxText's parameters and Hugging Face's tensors: their layout is here, their
// arithmetic in maxtext_arithmetic.h.

// Rows [first, last) of a tensor.
struct RowRange {
  int64_t first = 0;
  int64_t last = 0;
};

// Converts rows of the leaf's tensor `index` into it. `tensor` holds just these rows; interleaved
// outputs need whole heads. Vocabulary rows beyond the tensor's are converted from zeros. Returns
// false if the leaf's dtype cannot hold a value. Any thread; ranges that do not overlap may run
// concurrently.
bool TensorToLeaf(const MaxTextLeaf& leaf, int64_t index, RowRange rows,
                  std::span<const std::byte> tensor, engine::DType tensor_dtype,
                  engine::DType leaf_dtype, std::span<std::byte> out);

// The inverse, for some rows of the tensor, which `out` holds; interleaved outputs need whole
// heads. A vector that shares its parameter with others is one row. Any thread.
bool LeafToTensor(const MaxTextLeaf& leaf, int64_t index, RowRange rows,
                  std::span<const std::byte> bytes, engine::DType leaf_dtype,
                  engine::DType tensor_dtype, const Corrections& corrections,
                  std::span<std::byte> out);

// The inverse for a table (IsTable): converts the run of numbers that begins at index `first`.
bool RunToTensor(const MaxTextLeaf& leaf, int64_t first, std::span<const std::byte> run,
                 engine::DType leaf_dtype, engine::DType tensor_dtype,
                 const Corrections& corrections, std::span<std::byte> out);

// Whether the numbers are only moved, never changed.
bool IsUnchanged(const MaxTextLeaf& leaf, engine::DType leaf_dtype, engine::DType tensor_dtype);

// Counts the tensor's numbers that do not survive a leaf of this dtype, with the largest
// difference.
struct Loss {
  int64_t changed = 0;
  double max_abs = 0;
  void Add(const Loss& other);
};
Loss LossOf(const MaxTextArithmetic& arithmetic, engine::DType leaf_dtype,
            std::span<const std::byte> tensor, engine::DType tensor_dtype);
// For each number the steps from its image back to itself (Corrections). 0 where they exceed 32
// bits: that number stays changed, and the comparison of the written tensors reports it.
std::vector<int32_t> CorrectionSteps(const MaxTextArithmetic& arithmetic, engine::DType leaf_dtype,
                                     std::span<const std::byte> tensor, engine::DType tensor_dtype);

}  // namespace tandem::convert
