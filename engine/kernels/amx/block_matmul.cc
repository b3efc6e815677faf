// Standard and intrinsics headers come before the region. Otherwise the linker could keep a copy of
// their inline functions that was compiled for this instruction set.
#include <immintrin.h>

#include <utility>

#include "engine/kernels/kernels.h"
#include "engine/kernels/tables.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,amx-tile,amx-int8")

namespace tandem::engine::amx {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/avx512/vec.inc"
#include "engine/kernels/avx512/bytes_dot.inc"
#include "engine/kernels/block_matmul.inc"
#include "engine/kernels/amx/tiles.inc"
// clang-format on

}  // namespace

constinit const BlockKernels kBlocks = MakeTileKernels();

}  // namespace tandem::engine::amx

#pragma GCC pop_options
