#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "convert/formats/maxtext/maxtext_map.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {

// Converts numbers between tensors and MaxText's parameters, one to one, in f32 with one rounding.
//
// The inverse returns a number from which MaxText's number can have been computed. Where several
// floats give the same product, it picks the one with the most trailing zero bits. A bf16 or f16
// model therefore survives f32 bit for bit. Numbers that f32 (or bf16) cannot tell apart after
// scaling are restored from Corrections, stored beside the checkpoint.

// Convert one number in each direction. REQUIRES: leaf_dtype is kF32, kBF16 or kF16.
float ToMaxText(const MaxTextArithmetic& arithmetic, float value);
float FromMaxText(const MaxTextArithmetic& arithmetic, engine::DType leaf_dtype, float value);

// Corrections of one tensor whose numbers do not all survive the round trip: for each number the
// distance in steps of its dtype, mostly 0.
struct Corrections {
  // Dtype of the tensor when the corrections were computed.
  engine::DType dtype = engine::DType::kF32;
  engine::DType stored = engine::DType::kI32;  // kI8 or kI32
  std::span<const std::byte> steps;            // in the tensor's order; empty: none
};

// Converts many numbers in place.
void ApplyScale(const MaxTextArithmetic& arithmetic, float* values, int64_t n);
// Inverts the scale in place for `n` numbers from index `first` of a tensor. A correction is
// applied only if the corrected number still scales to MaxText's number, so later training is kept.
void InvertScale(const MaxTextArithmetic& arithmetic, engine::DType leaf_dtype,
                 const Corrections& corrections, int64_t first, float* values, int64_t n);

// Rounds to the dtype and widens back.
float Rounded(engine::DType dtype, float value);
// Numbers the values of a dtype in ascending order, so that neighbours differ by 1. Minus zero has
// its own ordinal.
int64_t OrdinalOf(engine::DType dtype, float value);

}  // namespace tandem::convert
