#include <sys/syscall.h>
#include <unistd.h>

#include "engine/kernels/cpu_features.h"

namespace tandem::engine {
namespace {

// Linux saves the eight KiB of tiles only for processes that ask (Documentation/x86/xstate.rst).
bool MayUseTiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

CpuFeatures DetectCpuFeatures() {
  CpuFeatures f;
  f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
  f.avx_vnni = f.avx2 && __builtin_cpu_supports("avxvnni");
  f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  f.avx512_bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16");
  f.avx512_vnni = f.avx512 && __builtin_cpu_supports("avx512vnni");
  f.amx_int8 = f.avx512_vnni && __builtin_cpu_supports("amx-tile") &&
               __builtin_cpu_supports("amx-int8") && MayUseTiles();
  return f;
}

}  // namespace tandem::engine
