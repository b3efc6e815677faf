// Standard and intrinsics headers come before the region. Otherwise the linker could keep a copy of
// their inline functions that was compiled for this instruction set.
#include <immintrin.h>

#include <utility>

#include "engine/kernels/kernels.h"
#include "engine/kernels/tables.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avxvnni")

namespace tandem::engine::avx_vnni {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/avx2/vec.inc"
#include "engine/kernels/avx_vnni/bytes_dot.inc"
#include "engine/kernels/avx2/nibbles.inc"
#include "engine/kernels/block_matmul.inc"
#include "engine/kernels/block_table.inc"
// clang-format on

}  // namespace

constinit const BlockKernels kBlocks = MakeBlockKernels();

}  // namespace tandem::engine::avx_vnni

#pragma GCC pop_options
