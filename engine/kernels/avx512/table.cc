// Standard and intrinsics headers come before the region. Otherwise the linker could keep a copy of
// their inline functions that was compiled for this instruction set.
#include <immintrin.h>

#include <type_traits>
#include <utility>

#include "engine/kernels/kernels.h"
#include "engine/kernels/tables.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")

namespace tandem::engine::avx512 {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/avx512/vec.inc"
#include "engine/kernels/avx512/pairs_widen.inc"
#include "engine/kernels/avx512/blocks.inc"
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

constinit const KernelTable kTable = MakeTable("avx512", "avx512", avx512_widen::kBlocks);
constinit const KernelTable kTableVnni = MakeTable("avx512", "avx512+vnni", avx512_vnni::kBlocks);
constinit const KernelTable kTableAmx = MakeTable("avx512", "avx512+vnni+amx", amx::kBlocks);

}  // namespace tandem::engine::avx512

#pragma GCC pop_options
