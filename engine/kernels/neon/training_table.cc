// Every 64-bit Arm CPU has these instructions, so no target region is needed.
#include <arm_neon.h>

#include "engine/kernels/training_kernels.h"
#include "engine/kernels/training_tables.h"

namespace tandem::engine::neon {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/neon/vec.inc"
#include "engine/kernels/math.inc"
#include "engine/kernels/attention_gradient.inc"
#include "engine/kernels/optimizer_kernels.inc"
#include "engine/kernels/training_kernels.inc"
// clang-format on

}  // namespace

constinit const TrainingKernelTable kTrainingTable = MakeTrainingTable("neon");

}  // namespace tandem::engine::neon
