// Standard and intrinsics headers come before the region. Otherwise the linker could keep a copy of
// their inline functions that was compiled for this instruction set.
#include <immintrin.h>

#include <utility>

#include "engine/kernels/kernels.h"
#include "engine/kernels/tables.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")

namespace tandem::engine::avx512_widen {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/avx512/vec.inc"
#include "engine/kernels/avx512/bytes_widen.inc"
#include "engine/kernels/block_matmul.inc"
// clang-format on

}  // namespace

void QuantizeBlockRows(const QuantizeRowsArgs& args) noexcept { QuantizeRows(args); }
void MatMulInt8(const BlockMatMulArgs& args) noexcept { BlockMatMul<BlockFormat::kInt8>(args); }
void MatMulInt4(const BlockMatMulArgs& args) noexcept { BlockMatMul<BlockFormat::kInt4>(args); }
void MatMulQ4K(const BlockMatMulArgs& args) noexcept { BlockMatMul<BlockFormat::kInt4K>(args); }
void MatMulInt6(const BlockMatMulArgs& args) noexcept { BlockMatMul<BlockFormat::kInt6>(args); }

}  // namespace tandem::engine::avx512_widen

#pragma GCC pop_options
