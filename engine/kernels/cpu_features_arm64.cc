#include <sys/auxv.h>

#include "engine/kernels/cpu_features.h"

namespace tandem::engine {

CpuFeatures DetectCpuFeatures() {
  const unsigned long first = getauxval(AT_HWCAP);
  const unsigned long second = getauxval(AT_HWCAP2);
  CpuFeatures f;
  f.neon = (first & HWCAP_ASIMD) != 0;
  f.neon_dot = f.neon && (first & HWCAP_ASIMDDP) != 0;
  f.neon_bf16 = f.neon && (second & HWCAP2_BF16) != 0;
  return f;
}

}  // namespace tandem::engine
