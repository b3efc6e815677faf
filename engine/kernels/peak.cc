#include "engine/kernels/peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/kernels/kernels.h"

namespace tandem::engine {
namespace {

// One step of peak arithmetic: 12 independent accumulators, enough to cover the latency of two
// units. In assembly, because the compiler would fold the loop away.
constexpr int64_t kPeakLoops = 20'000;
constexpr int64_t kPeakAccumulators = 12;

#define TANDEM_PEAK_TWELVE(op) \
  op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)
#define TANDEM_PEAK_CLOBBERS                                                               \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm15"
#define TANDEM_PEAK(function, instruction)                                   \
  void function() {                                                          \
    asm volatile("vxorps %%xmm15,%%xmm15,%%xmm15" ::: "xmm15");              \
    for (int64_t i = 0; i < kPeakLoops; ++i) {                               \
      asm volatile(TANDEM_PEAK_TWELVE(instruction)::: TANDEM_PEAK_CLOBBERS); \
    }                                                                        \
    asm volatile("vzeroupper" ::: TANDEM_PEAK_CLOBBERS);                     \
  }
#define TANDEM_PEAK_FMA256(i) "vfmadd231ps %%ymm15,%%ymm15,%%ymm" #i "\n\t"
#define TANDEM_PEAK_FMA512(i) "vfmadd231ps %%zmm15,%%zmm15,%%zmm" #i "\n\t"
#define TANDEM_PEAK_DOT512(i) "vdpbf16ps %%zmm15,%%zmm15,%%zmm" #i "\n\t"
#define TANDEM_PEAK_BYTES512(i) "vpdpbusd %%zmm15,%%zmm15,%%zmm" #i "\n\t"
#define TANDEM_PEAK_WORDS512(i) "vpmaddwd %%zmm15,%%zmm15,%%zmm" #i "\n\t"
#define TANDEM_PEAK_BYTES256(i) "%{vex%} vpdpbusd %%ymm15,%%ymm15,%%ymm" #i "\n\t"
// 32 products of bytes without vpdpbusd.
#define TANDEM_PEAK_PAIRS256(i)            \
  "vpmaddubsw %%ymm15,%%ymm15,%%ymm12\n\t" \
  "vpmaddwd %%ymm15,%%ymm12,%%ymm12\n\t"   \
  "vpaddd %%ymm12,%%ymm" #i ",%%ymm" #i "\n\t"
TANDEM_PEAK(RunFma256, TANDEM_PEAK_FMA256)
TANDEM_PEAK(RunFma512, TANDEM_PEAK_FMA512)
TANDEM_PEAK(RunDot512, TANDEM_PEAK_DOT512)
TANDEM_PEAK(RunBytes512, TANDEM_PEAK_BYTES512)
TANDEM_PEAK(RunWords512, TANDEM_PEAK_WORDS512)
TANDEM_PEAK(RunBytes256, TANDEM_PEAK_BYTES256)
TANDEM_PEAK(RunPairs256, TANDEM_PEAK_PAIRS256)
#undef TANDEM_PEAK
#undef TANDEM_PEAK_TWELVE
#undef TANDEM_PEAK_CLOBBERS
#undef TANDEM_PEAK_FMA256
#undef TANDEM_PEAK_FMA512
#undef TANDEM_PEAK_DOT512
#undef TANDEM_PEAK_BYTES512
#undef TANDEM_PEAK_WORDS512
#undef TANDEM_PEAK_BYTES256
#undef TANDEM_PEAK_PAIRS256

using Run = void (*)();

double Rate(ThreadPool& pool, double seconds, Run run, double operations_each) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  const auto round = [&] { pool.ParallelFor(pool.n_threads(), [&](int64_t, int) { run(); }); };
  round();
  round();
  std::vector<double> times;
  const auto start = Clock::now();
  do {
    const auto from = Clock::now();
    round();
    times.push_back(since(from));
  } while (since(start) < seconds);
  std::sort(times.begin(), times.end());
  return operations_each * static_cast<double>(kPeakLoops * kPeakAccumulators) * pool.n_threads() /
         times[times.size() / 2];
}

}  // namespace

double PeakRate(ThreadPool& pool, PeakKind kind, double seconds) {
  const KernelTable& table = Kernels();
  const bool wide = table.isa == "avx512";
  const bool dot = table.key.find("bf16") != std::string_view::npos;
  const bool dot_bytes = table.key.find("vnni") != std::string_view::npos;
  if (kind == PeakKind::kBytes) {
    if (wide && dot_bytes) return Rate(pool, seconds, RunBytes512, 128);
    if (wide) return Rate(pool, seconds, RunWords512, 64);
    return Rate(pool, seconds, dot_bytes ? RunBytes256 : RunPairs256, 64);
  }
  if (kind == PeakKind::kBf16 && dot) return Rate(pool, seconds, RunDot512, 64);
  return wide ? Rate(pool, seconds, RunFma512, 32) : Rate(pool, seconds, RunFma256, 16);
}

}  // namespace tandem::engine
