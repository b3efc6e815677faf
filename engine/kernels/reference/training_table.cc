// Standard headers come before the region: an inline function of theirs, compiled for this
// instruction set, must never be the copy that the linker keeps.
#include "engine/kernels/training_kernels.h"
#include "engine/kernels/training_tables.h"

namespace tandem::engine::reference {
namespace {

// Each file uses the ones before it.
// clang-format off
#include "engine/kernels/optimizer_kernels.inc"
#include "engine/kernels/training_kernels.inc"
// clang-format on

}  // namespace

constinit const TrainingKernelTable kTrainingTable = MakeTrainingTable("reference");

}  // namespace tandem::engine::reference
