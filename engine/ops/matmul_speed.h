#pragma once

#include <cstdint>

#include "engine/kernels/block_formats.h"
#include "engine/ops/ops_context.h"
#include "engine/tensor/dtype.h"

namespace tandem::engine {

// The speed of MatMul for one type of weights on this machine, all threads of the pool together.
struct MatMulSpeed {
  double bytes_per_second = 0;  // of weights, which are not cached, by products with one row
  double flops = 0;             // per second, of products with many rows; multiply and add are two
};
// Takes about twice `seconds`, and the memory of the weights: about 400 MB. REQUIRES: `dtype` is
// f32 or bf16, with a block bf16.
MatMulSpeed MeasureMatMul(OpsContext& ops, DType dtype, BlockFormat block, double seconds);

}  // namespace tandem::engine
