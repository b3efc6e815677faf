#include "training/ops/neftune.h"

#include <cmath>

#include "training/ops/router_loss.h"

namespace tandem::training {
namespace {

// SplitMix64 (Steele, Lea, Flood): a bijection that turns counters into random bits.
uint64_t MixNoise(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

constexpr uint64_t kNoiseStream = 0x4e454654756e65ull;  // apart from dropout's streams

}  // namespace

void AddNeftuneNoise(engine::OpsContext& ops, std::span<const DropoutRow> sources,
                     std::span<const Segment> segments, float alpha, uint64_t seed, int64_t cols,
                     float* x) {
  for (const Segment& segment : segments) {
    const auto scale = static_cast<float>(
        static_cast<double>(alpha) /
        std::sqrt(static_cast<double>(segment.n_rows) * static_cast<double>(cols)));
    ops.pool().ParallelFor(segment.n_rows, [&](int64_t r, int) {
      const int64_t row = segment.first_row + r;
      const DropoutRow& source = sources[static_cast<size_t>(row)];
      if (!IsOfSample(source)) return;
      const uint64_t key =
          MixNoise(MixNoise(MixNoise(seed ^ kNoiseStream) ^ source.sample) ^ source.position);
      float* out = x + row * cols;
      for (int64_t c = 0; c < cols; ++c) {
        const uint64_t bits = MixNoise(key ^ static_cast<uint64_t>(c)) >> 40;  // 24 of them
        out[c] += scale * (static_cast<float>(bits) * 0x1p-23f - 1.0f);
      }
    });
  }
}

}  // namespace tandem::training
