// Standard and intrinsics headers come before the region. Otherwise the linker could keep a copy of
// their inline functions that was compiled for this instruction set.
#include <arm_neon.h>

#include <utility>

#include "engine/kernels/kernels.h"
#include "engine/kernels/tables.h"

#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")

namespace tandem::engine::neon_dot {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/neon/vec.inc"
#include "engine/kernels/neon/bytes.inc"
#include "engine/kernels/neon/bytes_dot.inc"
#include "engine/kernels/block_matmul.inc"
#include "engine/kernels/block_table.inc"
// clang-format on

}  // namespace

constinit const BlockKernels kBlocks = MakeBlockKernels();

}  // namespace tandem::engine::neon_dot

#pragma GCC pop_options
