#pragma once

#include <cstdint>

namespace tandem::training {

// The order in which Grain's IndexSampler reads N records: record i of an epoch is
// GrainPermute((seed + epoch) mod 2^32, N, i). It runs four rounds of the Simon cipher (Beaulieu et
// al., 2013) over an even number of bits, at least 16, until the image is in range. std::seed_seq
// generates the round keys. As in Grain, the number of bits is ceil(log2(N - 1)). When N - 1 is an
// even power of two from 2^16 on (65,537, 262,145, …), one record therefore comes twice and one
// never.
int64_t GrainPermute(uint32_t seed, int64_t n, int64_t i);

}  // namespace tandem::training
