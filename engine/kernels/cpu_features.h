#pragma once

namespace tandem::engine {

// Features of this CPU and operating system that the kernel tables need.
struct CpuFeatures {
  bool avx2 = false;      // with FMA and F16C
  bool avx_vnni = false;  // AVX2 with the 256-bit vpdpbusd
  bool avx512 = false;    // F, BW, DQ and VL
  bool avx512_bf16 = false;
  bool avx512_vnni = false;
};

CpuFeatures DetectCpuFeatures();

}  // namespace tandem::engine
