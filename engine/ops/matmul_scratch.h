#pragma once

#include <cstdint>

#include "engine/kernels/block_formats.h"
#include "engine/tensor/dtype.h"

namespace tandem::engine {

// Bytes of OpsContext's scratch that the products of matmul.h need: one buffer shared by all
// workers, and one per worker. Used to estimate a program's memory.
struct ScratchBytes {
  int64_t shared = 0;
  int64_t worker = 0;
};

// MatMul of [rows, k] by a weight in blocks; other weights need none.
ScratchBytes BlockMatMulScratch(int64_t rows, int64_t k);
// MatMulInputGrad, for any shape.
ScratchBytes InputGradScratch(DType dtype);
// MatMulWeightGrad where x is [rows, k].
ScratchBytes WeightGradScratch(DType dtype, int64_t rows, int64_t k);

}  // namespace tandem::engine
