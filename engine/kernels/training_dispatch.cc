#include "engine/base/check.h"
#include "engine/kernels/training_tables.h"

namespace tandem::engine {

const TrainingKernelTable& TrainingKernels(const KernelTable& kernels) {
  // By instruction set, not by key: gradients use no bf16 or VNNI instructions.
  const std::string_view isa = kernels.isa == "avxvnni" ? "avx2" : kernels.isa;
  if (isa == reference::kTrainingTable.isa) return reference::kTrainingTable;
  for (const TrainingKernelTable* table : VectorTrainingTables()) {
    if (table->isa == isa) return *table;
  }
  TANDEM_CHECK(false);
}

}  // namespace tandem::engine
