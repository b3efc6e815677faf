// Every 64-bit Arm CPU has these instructions, so no target region is needed.
#include "engine/kernels/training_kernels.h"
#include "engine/kernels/training_tables.h"

namespace tandem::engine::neon {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/optimizer_kernels.inc"
#include "engine/kernels/training_kernels.inc"
// clang-format on

}  // namespace

constinit const TrainingKernelTable kTrainingTable = MakeTrainingTable("neon");

}  // namespace tandem::engine::neon
