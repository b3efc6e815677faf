// Every 64-bit Arm CPU has these instructions, so no target region is needed.
#include <arm_neon.h>

#include <utility>

#include "engine/kernels/kernels.h"
#include "engine/kernels/tables.h"

namespace tandem::engine::neon_widen {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/neon/vec.inc"
#include "engine/kernels/neon/bytes.inc"
#include "engine/kernels/neon/bytes_widen.inc"
#include "engine/kernels/block_matmul.inc"
#include "engine/kernels/block_table.inc"
// clang-format on

}  // namespace

constinit const BlockKernels kBlocks = MakeBlockKernels();

}  // namespace tandem::engine::neon_widen
