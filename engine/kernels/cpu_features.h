#pragma once

namespace tandem::engine {

// Features of this CPU and operating system that the kernel tables need.
struct CpuFeatures {
  bool avx2 = false;      // with FMA and F16C
  bool avx_vnni = false;  // AVX2 with the 256-bit vpdpbusd
  bool avx512 = false;    // F, BW, DQ and VL
  bool avx512_bf16 = false;
  bool slow_bf16_dot = false;  // vdpbf16ps multiplies fewer numbers per cycle than FMAs of f32
  bool avx512_vnni = false;
  bool amx_int8 = false;  // with VNNI, and Linux lets this process use tiles

  bool neon = false;       // 64-bit Arm
  bool neon_dot = false;   // sdot
  bool neon_bf16 = false;  // bfmlalb and bfmlalt
};

CpuFeatures DetectCpuFeatures();

}  // namespace tandem::engine
