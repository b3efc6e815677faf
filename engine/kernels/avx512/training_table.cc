// Standard and intrinsics headers come before the region. Otherwise the linker could keep a copy of
// their inline functions that was compiled for this instruction set.
#include <immintrin.h>

#include "engine/kernels/training_kernels.h"
#include "engine/kernels/training_tables.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")

namespace tandem::engine::avx512 {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/avx512/vec.inc"
#include "engine/kernels/math.inc"
#include "engine/kernels/attention_gradient.inc"
#include "engine/kernels/optimizer_kernels.inc"
#include "engine/kernels/training_kernels.inc"
// clang-format on

}  // namespace

constinit const TrainingKernelTable kTrainingTable = MakeTrainingTable("avx512");

}  // namespace tandem::engine::avx512

#pragma GCC pop_options
