// Every 64-bit Arm CPU has these instructions, so no target region is needed.
#include <arm_neon.h>

#include <type_traits>
#include <utility>

#include "engine/kernels/kernels.h"
#include "engine/kernels/tables.h"

namespace tandem::engine::neon {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/neon/vec.inc"
#include "engine/kernels/neon/pairs_widen.inc"
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

constinit const KernelTable kTable = MakeTable("neon", "neon", neon_widen::kBlocks);
constinit const KernelTable kTableDot = MakeTable("neon", "neon+dotprod", neon_dot::kBlocks);

}  // namespace tandem::engine::neon
