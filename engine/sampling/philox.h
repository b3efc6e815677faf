#pragma once

#include <array>
#include <cstdint>

namespace tandem::engine {

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): 128 random
// bits as a function of key and counter. It has no state, so batching, preemption and recomputation
// cannot change a draw.
inline std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, uint64_t key) {
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(a)};
    key0 += 0x9E3779B9;  // golden ratio
    key1 += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits: the draw of one choice's token at one position of its sequence.
inline double UniformDraw(uint64_t seed, int choice, int64_t position) {
  const auto p = static_cast<uint64_t>(position);
  const std::array<uint32_t, 4> bits = Philox4x32(
      {static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), static_cast<uint32_t>(choice), 0},
      seed);
  return static_cast<double>((uint64_t{bits[1]} << 32 | bits[0]) >> 11) * 0x1p-53;
}

}  // namespace tandem::engine
