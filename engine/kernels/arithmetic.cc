#include "engine/kernels/arithmetic.h"

#include <cstdlib>
#include <string>

#include "engine/base/error.h"

namespace tandem::engine {

std::string_view ArithmeticOf(const KernelTable& table) {
  const bool has_own = table.isa == "reference" || table.key.starts_with("avx512+bf16");
  return has_own ? table.key : kCommonArithmetic;
}

void UseCommonArithmetic() {
  ::setenv("TANDEM_REPRODUCIBLE", "1", 1);
  const KernelTable& table = Kernels();
  if (ArithmeticOf(table) == kCommonArithmetic) return;
  throw Error(ErrorCode::kInvalidArgument,
              "reproducible results need the common arithmetic, but this process already uses " +
                  std::string(table.key));
}

}  // namespace tandem::engine
