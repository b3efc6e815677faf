#include <cpuid.h>
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

// Sapphire and Emerald Rapids begin one vdpbf16ps every other cycle, but two FMAs in each: 32
// products a cycle of either kind of number, against 16. They expect AMX to be used instead.
bool HasSlowBf16Dot() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__builtin_cpu_is("intel") || __get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  const unsigned family = (eax >> 8) & 15;
  const unsigned model = ((eax >> 4) & 15) | ((eax >> 12) & 0xf0);
  constexpr unsigned kSapphireRapids = 0x8f;
  constexpr unsigned kEmeraldRapids = 0xcf;
  return family == 6 && (model == kSapphireRapids || model == kEmeraldRapids);
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
  f.slow_bf16_dot = f.avx512_bf16 && HasSlowBf16Dot();
  f.avx512_vnni = f.avx512 && __builtin_cpu_supports("avx512vnni");
  f.amx_int8 = f.avx512_vnni && __builtin_cpu_supports("amx-tile") &&
               __builtin_cpu_supports("amx-int8") && MayUseTiles();
  return f;
}

}  // namespace tandem::engine
