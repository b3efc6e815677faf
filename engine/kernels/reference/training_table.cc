// Standard headers come before the region. Otherwise the linker could keep a copy of their inline
// functions that was compiled for this instruction set.
#include "engine/kernels/training_kernels.h"
#include "engine/kernels/training_tables.h"

namespace tandem::engine::reference {
namespace {

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/optimizer_kernels.inc"
#include "engine/kernels/training_kernels.inc"
// clang-format on

}  // namespace

constinit const TrainingKernelTable kTrainingTable = MakeTrainingTable("reference");

}  // namespace tandem::engine::reference
