#pragma once

#include <span>

#include "engine/kernels/training_kernels.h"

// The tables themselves, for training_dispatch.cc only.
namespace tandem::engine {

// The vector tables of this architecture (tables_x86.cc, tables_arm64.cc).
std::span<const TrainingKernelTable* const> VectorTrainingTables();

namespace reference {
extern const TrainingKernelTable kTrainingTable;
}
namespace avx2 {
extern const TrainingKernelTable kTrainingTable;
}
namespace avx512 {
extern const TrainingKernelTable kTrainingTable;
}
namespace neon {
extern const TrainingKernelTable kTrainingTable;
}

}  // namespace tandem::engine
