// Standard and intrinsics headers come before the region. Otherwise the linker could keep a copy of
// their inline functions that was compiled for this instruction set.
#include <arm_neon.h>

#include <type_traits>
#include <utility>

#include "engine/kernels/kernels.h"
#include "engine/kernels/tables.h"

#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+bf16")

namespace tandem::engine::neon_bf16 {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/neon/vec.inc"
#include "engine/kernels/neon/pairs_fused.inc"
#include "engine/kernels/neon/blocks.inc"
#include "engine/kernels/math.inc"
#include "engine/kernels/row_kernels.inc"
#include "engine/kernels/matmul.inc"
#include "engine/kernels/matmul_wide.inc"
#include "engine/kernels/pack.inc"
#include "engine/kernels/attention_products.inc"
#include "engine/kernels/attention_tiles.inc"
#include "engine/kernels/attention.inc"
#include "engine/kernels/table.inc"
// clang-format on

}  // namespace

constinit const KernelTable kTable = MakeTable("neon", "neon+dotprod+bf16", neon_dot::kBlocks);

}  // namespace tandem::engine::neon_bf16

#pragma GCC pop_options
