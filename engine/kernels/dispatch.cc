#include <array>
#include <cstdlib>
#include <string>

#include "engine/base/error.h"
#include "engine/kernels/cpu_features.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/tables.h"

namespace tandem::engine {
namespace {

struct RunnableTables {
  std::array<const KernelTable*, 5> tables{};
  size_t count = 0;

  RunnableTables() {
    const CpuFeatures cpu = DetectCpuFeatures();
    tables[count++] = &reference::kTable;
    if (cpu.avx2) tables[count++] = &avx2::kTable;
    if (cpu.avx_vnni) tables[count++] = &avx2::kTableVnni;
    if (cpu.avx512) tables[count++] = &avx512::kTable;
    if (cpu.avx512_bf16) {
      tables[count++] = cpu.avx512_vnni ? &avx512_bf16::kTableVnni : &avx512_bf16::kTable;
    } else if (cpu.avx512_vnni) {
      tables[count++] = &avx512::kTableVnni;
    }
  }
};

const KernelTable& Choose() {
  const std::span<const KernelTable* const> tables = RunnableKernelTables();
  const char* forced = std::getenv("TANDEM_FORCE_ISA");
  if (forced == nullptr || *forced == '\0') return *tables.back();
  // The last table of an isa has the most features.
  const KernelTable* chosen = nullptr;
  for (const KernelTable* table : tables) {
    if (table->isa == forced) chosen = table;
  }
  if (chosen == nullptr) {
    std::string names;
    for (const KernelTable* table : tables) {
      if (names.ends_with(table->isa)) continue;
      names += (names.empty() ? "" : ", ") + std::string(table->isa);
    }
    throw Error(ErrorCode::kInvalidArgument, "TANDEM_FORCE_ISA must be one of " + names +
                                                 " on this CPU, got " + std::string(forced));
  }
  return *chosen;
}

}  // namespace

std::span<const KernelTable* const> RunnableKernelTables() {
  static const RunnableTables runnable;
  return {runnable.tables.data(), runnable.count};
}

const KernelTable& Kernels() {
  static const KernelTable& chosen = Choose();
  return chosen;
}

}  // namespace tandem::engine
