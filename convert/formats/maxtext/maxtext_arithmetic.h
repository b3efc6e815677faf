#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "convert/formats/maxtext/maxtext_map.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {

// The numbers of MaxText's parameters, one made of each of a tensor, and back. All of it is
// computed in f32 and rounded once.
//
// On the way back a number is what MaxText's number can have been made of. Where several floats
// give the same product, the one with the most zeros at its end is taken: a model in bf16 or f16
// comes back bit for bit from f32. What cannot come back, since f32 (or bf16) has no different
// products or sums for different numbers, stands beside the checkpoint: Corrections.

// One number, there and back. REQUIRES: leaf_dtype is kF32 or kBF16 or kF16.
float ToMaxText(const MaxTextArithmetic& arithmetic, float value);
float FromMaxText(const MaxTextArithmetic& arithmetic, engine::DType leaf_dtype, float value);

// What stands beside a checkpoint for one tensor, whose numbers did not all come back by
// themselves: how many steps of its type each was off, 0 for most.
struct Corrections {
  engine::DType dtype = engine::DType::kF32;   // of the tensor then
  engine::DType stored = engine::DType::kI32;  // kI8 or kI32
  std::span<const std::byte> steps;            // in the tensor's order; empty: none
};

// Many, in place.
void ApplyScale(const MaxTextArithmetic& arithmetic, float* values, int64_t n);
// Those of a tensor from its `first` on. A correction is used where it gives a number of which
// MaxText's is made, so that what was trained since keeps its value.
void InvertScale(const MaxTextArithmetic& arithmetic, engine::DType leaf_dtype,
                 const Corrections& corrections, int64_t first, float* values, int64_t n);

// To the type and back.
float Rounded(engine::DType dtype, float value);
// Numbers of a type in their order, so that neighbours differ by 1. Minus zero is one of its own.
int64_t OrdinalOf(engine::DType dtype, float value);

}  // namespace tandem::convert
