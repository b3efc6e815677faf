#pragma once

#include <cstdint>

namespace tandem::training {

// 64 random bits for a counter under a seed (SplitMix64 of Steele, Lea and Flood, chained). All
// choices that must not depend on order, threads or process derive from it.
uint64_t HashCounter(uint64_t seed, uint64_t counter);

// A pseudo-random permutation of [0, n), computed per element. Runs four Feistel rounds over the
// smallest even number of bits that holds n, until the image is in range. REQUIRES: 0 <= i < n.
int64_t Permute(uint64_t seed, int64_t n, int64_t i);

}  // namespace tandem::training
