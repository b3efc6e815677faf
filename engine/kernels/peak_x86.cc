#include <cstdint>

#include "engine/kernels/peak_loop.h"

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

// The operand of ldtilecfg: palette 1, eight tiles of 16 rows with 64 bytes.
struct alignas(64) PeakTiles {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Six sums, each twice, cover the latency of the one unit. Loading the shapes zeroes the tiles.
#define TANDEM_PEAK_TILE(i) "tdpbsud %%tmm7,%%tmm6,%%tmm" #i "\n\t"
#define TANDEM_PEAK_SIX(op) op(0) op(1) op(2) op(3) op(4) op(5)
void RunTiles() {
  const PeakTiles shapes;
  asm volatile("ldtilecfg %0" ::"m"(shapes));
  for (int64_t i = 0; i < kPeakLoops; ++i) {
    asm volatile(TANDEM_PEAK_SIX(TANDEM_PEAK_TILE) TANDEM_PEAK_SIX(TANDEM_PEAK_TILE)::: "memory");
  }
  asm volatile("tilerelease" ::: "memory");
}
#undef TANDEM_PEAK_TILE
#undef TANDEM_PEAK_SIX

// A loop of instructions with this many operations each.
PeakLoop Loop(void (*run)(), int64_t operations) {
  return {run, static_cast<double>(operations * kPeakLoops * kPeakAccumulators)};
}

}  // namespace

PeakLoop FindPeakLoop(const KernelTable& table, PeakKind kind) {
  const bool wide = table.isa == "avx512";
  const bool dot = table.key.find("bf16") != std::string_view::npos;
  const bool dot_bytes = table.key.find("vnni") != std::string_view::npos;
  if (kind == PeakKind::kBytes) {
    constexpr int64_t kTileOperations = 2 * 16 * 16 * 64;
    if (table.key.find("amx") != std::string_view::npos) return Loop(RunTiles, kTileOperations);
    if (wide && dot_bytes) return Loop(RunBytes512, 128);
    if (wide) return Loop(RunWords512, 64);
    return Loop(dot_bytes ? RunBytes256 : RunPairs256, 64);
  }
  if (kind == PeakKind::kBf16 && dot) return Loop(RunDot512, 64);
  return wide ? Loop(RunFma512, 32) : Loop(RunFma256, 16);
}

}  // namespace tandem::engine
