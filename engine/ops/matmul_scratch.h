#pragma once

#include <cstdint>

#include "engine/kernels/block_formats.h"
#include "engine/tensor/dtype.h"

namespace tandem::engine {

// Bytes of OpsContext's scratch that the products of matmul.h take: one for all workers together,
// and one for each. For whoever says beforehand what a program will hold.
struct ScratchBytes {
  int64_t shared = 0;
  int64_t worker = 0;
};

// MatMul of [rows, k] by a weight in blocks; by other weights it takes none.
ScratchBytes BlockMatMulScratch(int64_t rows, int64_t k);
// MatMulInputGrad, whatever the shapes.
ScratchBytes InputGradScratch(DType dtype);
// MatMulWeightGrad where x is [rows, k].
ScratchBytes WeightGradScratch(DType dtype, int64_t rows, int64_t k);

}  // namespace tandem::engine
