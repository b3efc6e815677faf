#pragma once

#include <cstdint>

namespace tandem::training {

// The order that Grain's IndexSampler gives N records in an epoch: record i of it is
// GrainPermute((seed + epoch) mod 2^32, N, i). The Simon cipher (Beaulieu et al., 2013) in four
// rounds over an even number of bits, at least 16, walked until the image is in range; round keys
// from std::seed_seq. As in Grain, the bits are those of ceil(log2(N - 1)): where N - 1 is an even
// power of two from 2^16 on (65,537, 262,145, …) one record comes twice and one never.
int64_t GrainPermute(uint32_t seed, int64_t n, int64_t i);

}  // namespace tandem::training
