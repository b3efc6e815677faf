#include "engine/base/check.h"
#include "engine/kernels/training_tables.h"

namespace tandem::engine {

const TrainingKernelTable& TrainingKernels(const KernelTable& kernels) {
  // By instruction set, not by key: gradients use no bf16 or VNNI instructions.
  for (const TrainingKernelTable* table :
       {&reference::kTrainingTable, &avx2::kTrainingTable, &avx512::kTrainingTable}) {
    if (table->isa == kernels.isa) return *table;
  }
  TANDEM_CHECK(false);
}

}  // namespace tandem::engine
