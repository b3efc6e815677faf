#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/arithmetic.h"
#include "engine/kernels/cpu_features.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/tables.h"

namespace tandem::engine {
namespace {

std::vector<const KernelTable*> FindRunnable() {
  std::vector<const KernelTable*> tables = VectorTables(DetectCpuFeatures());
  tables.insert(tables.begin(), &reference::kTable);
  return tables;
}

bool IsSet(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

// "reference, avx2, avx512": each instruction set once.
std::string NamesOf(std::span<const KernelTable* const> tables) {
  std::string names;
  for (const KernelTable* table : tables) {
    if (names.ends_with(table->isa)) continue;
    names += (names.empty() ? "" : ", ") + std::string(table->isa);
  }
  return names;
}

const KernelTable& Choose() {
  const std::span<const KernelTable* const> tables = RunnableKernelTables();
  const char* variable = std::getenv("TANDEM_FORCE_ISA");
  const std::string forced = variable != nullptr ? variable : "";
  const bool is_common = IsSet("TANDEM_REPRODUCIBLE");
  // The last table of an isa is its best one.
  const KernelTable* chosen = nullptr;
  for (const KernelTable* table : tables) {
    if (!forced.empty() && table->isa != forced && table->key != forced) continue;
    if (is_common && ArithmeticOf(*table) != kCommonArithmetic) continue;
    chosen = table;
  }
  if (chosen != nullptr) return *chosen;
  if (is_common) {
    throw Error(ErrorCode::kInvalidArgument,
                "reproducible results need vector kernels of the common arithmetic; " +
                    (forced.empty() ? "this CPU has none"
                                    : "TANDEM_FORCE_ISA names " + forced + ", which has another"));
  }
  throw Error(ErrorCode::kInvalidArgument,
              "TANDEM_FORCE_ISA must be one of " + NamesOf(tables) + " on this CPU, got " + forced);
}

}  // namespace

std::span<const KernelTable* const> RunnableKernelTables() {
  static const std::vector<const KernelTable*> runnable = FindRunnable();
  return runnable;
}

const KernelTable& Kernels() {
  static const KernelTable& chosen = Choose();
  return chosen;
}

}  // namespace tandem::engine
