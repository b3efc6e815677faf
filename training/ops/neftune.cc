#include "training/ops/neftune.h"

#include <algorithm>
#include <cmath>

#include "engine/tensor/split_mix.h"
#include "training/ops/router_loss.h"

namespace tandem::training {
namespace {

constexpr uint64_t kNoiseStream = 0x4e454654756e65ull;  // apart from dropout's streams

}  // namespace

void AddNeftuneNoise(engine::OpsContext& ops, std::span<const DropoutRow> sources,
                     std::span<const Segment> segments, float alpha, uint64_t seed, int64_t cols,
                     float* x, int64_t first_row) {
  const int64_t end_row = first_row + static_cast<int64_t>(sources.size());
  for (const Segment& segment : segments) {
    const auto scale = static_cast<float>(
        static_cast<double>(alpha) /
        std::sqrt(static_cast<double>(segment.n_rows) * static_cast<double>(cols)));
    const int64_t begin = std::max(segment.first_row, first_row);
    const int64_t end = std::min(segment.first_row + segment.n_rows, end_row);
    ops.pool().ParallelFor(std::max<int64_t>(0, end - begin), [&](int64_t r, int) {
      const int64_t row = begin - first_row + r;
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
