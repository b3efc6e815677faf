// Standard and intrinsics headers come before the region. Otherwise the linker could keep a copy of
// their inline functions that was compiled for this instruction set.
#include <immintrin.h>

#include <type_traits>
#include <utility>

#include "engine/kernels/kernels.h"
#include "engine/kernels/tables.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace tandem::engine::avx2 {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/avx2/vec.inc"
#include "engine/kernels/avx2/bytes.inc"
#include "engine/kernels/avx2/nibbles.inc"
#include "engine/kernels/avx2/blocks.inc"
#include "engine/kernels/math.inc"
#include "engine/kernels/row_kernels.inc"
#include "engine/kernels/matmul.inc"
#include "engine/kernels/matmul_wide.inc"
#include "engine/kernels/block_matmul.inc"
#include "engine/kernels/avx2/int8_wide.inc"
#include "engine/kernels/block_table.inc"
#include "engine/kernels/pack.inc"
#include "engine/kernels/attention_products.inc"
#include "engine/kernels/attention_tiles.inc"
#include "engine/kernels/attention.inc"
#include "engine/kernels/table.inc"
// clang-format on

}  // namespace

constinit const BlockKernels kBlocks = WithWideInt8(MakeBlockKernels());
constinit const KernelTable kTable = MakeTable("avx2", "avx2", kBlocks);
constinit const KernelTable kTableVnni = MakeTable("avxvnni", "avxvnni", avx_vnni::kBlocks);

}  // namespace tandem::engine::avx2

#pragma GCC pop_options
