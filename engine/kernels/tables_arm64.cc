#include <array>

#include "engine/kernels/tables.h"
#include "engine/kernels/training_tables.h"

namespace tandem::engine {

std::vector<const KernelTable*> VectorTables(const CpuFeatures& cpu) {
  std::vector<const KernelTable*> tables;
  if (cpu.neon) tables.push_back(&neon::kTable);
  if (cpu.neon_dot) tables.push_back(&neon::kTableDot);
  if (cpu.neon_dot && cpu.neon_bf16) tables.push_back(&neon_bf16::kTable);
  return tables;
}

std::span<const TrainingKernelTable* const> VectorTrainingTables() {
  static constexpr std::array<const TrainingKernelTable*, 1> kTables{&neon::kTrainingTable};
  return kTables;
}

}  // namespace tandem::engine
