#pragma once

#include "engine/kernels/training_kernels.h"

// The tables themselves, for training_dispatch.cc only.
namespace tandem::engine {

namespace reference {
extern const TrainingKernelTable kTrainingTable;
}
namespace avx2 {
extern const TrainingKernelTable kTrainingTable;
}
namespace avx512 {
extern const TrainingKernelTable kTrainingTable;
}

}  // namespace tandem::engine
