#include <cstdint>

#include "engine/kernels/peak_loop.h"

namespace tandem::engine {
namespace {

// One step of peak arithmetic: 16 independent accumulators, enough to cover the latency of four
// units. In assembly, because the compiler would fold the loop away.
constexpr int64_t kPeakLoops = 20'000;
constexpr int64_t kPeakAccumulators = 16;

#define TANDEM_PEAK_SIXTEEN(op)                                                                    \
  op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(16) op(17) op(18) op(19) op(20) op(21) op(22) \
      op(23)
#define TANDEM_PEAK_CLOBBERS                                                                       \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21", "v22", \
      "v23", "v24", "v25", "v26", "v31"
#define TANDEM_PEAK(function, extension, instruction)                                   \
  void function() {                                                                     \
    asm volatile(extension "movi v31.4s, #0" ::: "v31");                                \
    for (int64_t i = 0; i < kPeakLoops; ++i) {                                          \
      asm volatile(extension TANDEM_PEAK_SIXTEEN(instruction)::: TANDEM_PEAK_CLOBBERS); \
    }                                                                                   \
  }
#define TANDEM_PEAK_FMA(i) "fmla v" #i ".4s, v31.4s, v31.4s\n\t"
#define TANDEM_PEAK_PAIRS(i) "bfmlalb v" #i ".4s, v31.8h, v31.8h\n\t"
#define TANDEM_PEAK_BYTES(i) "sdot v" #i ".4s, v31.16b, v31.16b\n\t"
// 16 products of bytes without sdot.
#define TANDEM_PEAK_WORDS(i)            \
  "smull v24.8h, v31.8b, v31.8b\n\t"    \
  "smull2 v25.8h, v31.16b, v31.16b\n\t" \
  "addp v26.8h, v24.8h, v25.8h\n\t"     \
  "sadalp v" #i ".4s, v26.8h\n\t"
TANDEM_PEAK(RunFma, "", TANDEM_PEAK_FMA)
TANDEM_PEAK(RunPairs, ".arch armv8.2-a+bf16\n\t", TANDEM_PEAK_PAIRS)
TANDEM_PEAK(RunBytes, ".arch armv8.2-a+dotprod\n\t", TANDEM_PEAK_BYTES)
TANDEM_PEAK(RunWords, "", TANDEM_PEAK_WORDS)
#undef TANDEM_PEAK
#undef TANDEM_PEAK_SIXTEEN
#undef TANDEM_PEAK_CLOBBERS
#undef TANDEM_PEAK_FMA
#undef TANDEM_PEAK_PAIRS
#undef TANDEM_PEAK_BYTES
#undef TANDEM_PEAK_WORDS

// A loop of instructions with this many operations each.
PeakLoop Loop(void (*run)(), int64_t operations) {
  return {run, static_cast<double>(operations * kPeakLoops * kPeakAccumulators)};
}

}  // namespace

PeakLoop FindPeakLoop(const KernelTable& table, PeakKind kind) {
  const auto has = [&](std::string_view feature) {
    return table.key.find(feature) != std::string_view::npos;
  };
  if (kind == PeakKind::kBytes) return Loop(has("dotprod") ? RunBytes : RunWords, 32);
  return Loop(kind == PeakKind::kBf16 && has("bf16") ? RunPairs : RunFma, 8);
}

}  // namespace tandem::engine
