// Standard and intrinsics headers come before the region. Otherwise the linker could keep a copy of
// their inline functions that was compiled for this instruction set.
#include <immintrin.h>

#include "engine/kernels/training_kernels.h"
#include "engine/kernels/training_tables.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace tandem::engine::avx2 {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/avx2/vec.inc"
#include "engine/kernels/math.inc"
#include "engine/kernels/attention_gradient.inc"
#include "engine/kernels/optimizer_kernels.inc"
#include "engine/kernels/training_kernels.inc"
// clang-format on

}  // namespace

constinit const TrainingKernelTable kTrainingTable = MakeTrainingTable("avx2");

}  // namespace tandem::engine::avx2

#pragma GCC pop_options
