#pragma once

#include <cstdint>

namespace tandem::engine {

// The distance between two states of SplitMix64.
inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15ull;

// SplitMix64 (Steele, Lea, Flood 2014): a bijection that turns counters into random bits. Equals
// the generator's first number from state x.
constexpr uint64_t SplitMix64(uint64_t x) {
  x += kSplitMixStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace tandem::engine
