#include "training/ops/neftune.h"

#include <cmath>

#include "engine/tensor/split_mix.h"
#include "training/ops/router_loss.h"

namespace tandem::training {
namespace {

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
      const uint64_t key = engine::SplitMix64(
          engine::SplitMix64(engine::SplitMix64(seed ^ kNoiseStream) ^ source.sample) ^
          source.position);
      float* out = x + row * cols;
      for (int64_t c = 0; c < cols; ++c) {
        const uint64_t bits =
            engine::SplitMix64(key ^ static_cast<uint64_t>(c)) >> 40;  // 24 of them
        out[c] += scale * (static_cast<float>(bits) * 0x1p-23f - 1.0f);
      }
    });
  }
}

}  // namespace tandem::training
