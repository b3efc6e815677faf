#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "convert/maxtext_map.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {

// The numbers of MaxText's parameters and of Hugging Face's tensors, one made of the other. All of
// it is computed in f32 and rounded once.
//
// On the way back a number is what MaxText's number can have been made of. Where several floats
// give the same product, the one with the most zeros at its end is taken: a model in bf16 or f16
// comes back bit for bit from f32. What cannot come back, since f32 (or bf16) has no different
// products or sums for different numbers, is what CorrectionsOf finds.

// One number, there and back. REQUIRES: leaf_dtype is kF32 or kBF16 or kF16.
float ToMaxText(const MaxTextArithmetic& arithmetic, float value);
float FromMaxText(const MaxTextArithmetic& arithmetic, engine::DType leaf_dtype, float value);

// A piece of a tensor, as rows of the leaf: [first, last).
struct RowRange {
  int64_t first = 0;
  int64_t last = 0;
};

// Puts rows of a layer's tensor where they are in the leaf. Rows of a vocabulary beyond the
// tensor's become what zeros become. False: the leaf's type does not have some value. Any thread;
// ranges that do not overlap at the same time.
bool TensorToLeaf(const MaxTextLeaf& leaf, int64_t layer, RowRange rows,
                  std::span<const std::byte> tensor, engine::DType tensor_dtype,
                  engine::DType leaf_dtype, std::span<std::byte> out);

// What stands beside a checkpoint for one tensor, whose numbers did not all come back by
// themselves: how many steps of its type each was off, 0 for most.
struct Corrections {
  engine::DType dtype = engine::DType::kF32;  // of the tensor then
  std::vector<int32_t> steps;                 // in its order; empty: none
};

// The way back, of rows within the tensor's vocabulary. A correction is used where it gives a
// number of which the leaf's is made, so that what was trained since keeps its value.
bool LeafToTensor(const MaxTextLeaf& leaf, int64_t layer, RowRange rows,
                  std::span<const std::byte> bytes, engine::DType leaf_dtype,
                  engine::DType tensor_dtype, const Corrections& corrections,
                  std::span<std::byte> out);

// The way back of some numbers of a parameter that is a tensor as it lies (IsTable), from the first
// on. `run` is theirs, `out` the whole tensor's.
bool RunToTensor(const MaxTextLeaf& leaf, int64_t first, std::span<const std::byte> run,
                 engine::DType leaf_dtype, engine::DType tensor_dtype,
                 const Corrections& corrections, std::span<std::byte> out);

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
