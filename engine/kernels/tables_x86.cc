#include <array>

#include "engine/kernels/tables.h"
#include "engine/kernels/training_tables.h"

namespace tandem::engine {

std::vector<const KernelTable*> VectorTables(const CpuFeatures& cpu) {
  std::vector<const KernelTable*> tables;
  if (cpu.avx2) tables.push_back(&avx2::kTable);
  if (cpu.avx_vnni) tables.push_back(&avx2::kTableVnni);
  std::vector<const KernelTable*> floats, pairs;  // how they multiply bf16
  if (cpu.avx512) floats.push_back(&avx512::kTable);
  if (cpu.avx512_vnni) floats.push_back(&avx512::kTableVnni);
  if (cpu.amx_int8) floats.push_back(&avx512::kTableAmx);
  if (cpu.avx512_bf16) {
    pairs.push_back(cpu.avx512_vnni ? &avx512_bf16::kTableVnni : &avx512_bf16::kTable);
    if (cpu.amx_int8) pairs.push_back(&avx512_bf16::kTableAmx);
  }
  if (cpu.slow_bf16_dot) floats.swap(pairs);
  tables.insert(tables.end(), floats.begin(), floats.end());
  tables.insert(tables.end(), pairs.begin(), pairs.end());
  return tables;
}

std::span<const TrainingKernelTable* const> VectorTrainingTables() {
  static constexpr std::array<const TrainingKernelTable*, 2> kTables{&avx2::kTrainingTable,
                                                                     &avx512::kTrainingTable};
  return kTables;
}

}  // namespace tandem::engine
