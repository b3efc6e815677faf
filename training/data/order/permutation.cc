#include "training/data/order/permutation.h"

#include <bit>

#include "engine/base/check.h"
#include "engine/tensor/split_mix.h"

namespace tandem::training {
uint64_t HashCounter(uint64_t seed, uint64_t counter) {
  return engine::SplitMix64(engine::SplitMix64(seed) ^ (counter * 0xd1342543de82ef95ull + 1));
}

int64_t Permute(uint64_t seed, int64_t n, int64_t i) {
  TANDEM_CHECK(n > 0 && i >= 0 && i < n);
  const int width = std::bit_width(static_cast<uint64_t>(n - 1));
  const int half = width / 2 + width % 2;
  if (half == 0) return 0;
  const uint64_t mask = (uint64_t{1} << half) - 1;

  // The domain has at most four times the range, so the walk ends after a few rounds.
  auto x = static_cast<uint64_t>(i);
  do {
    uint64_t left = x >> half;
    uint64_t right = x & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t next =
          left ^ (HashCounter(seed + round * 0x632be59bd9b4e019ull, right) & mask);
      left = right;
      right = next;
    }
    x = (left << half) | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

}  // namespace tandem::training
