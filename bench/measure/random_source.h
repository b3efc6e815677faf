#pragma once

#include <cmath>
#include <cstdint>

namespace tandem::bench {

// splitmix64 (Steele, Lea, Flood 2014), equal with every standard library. `stream` and `index`
// select one of many independent sequences per seed.
class RandomSource {
 public:
  explicit RandomSource(uint64_t seed, uint64_t stream = 0, uint64_t index = 0)
      : state_(Mix(Mix(Mix(seed) ^ stream) ^ index)) {}

  uint64_t Next() {
    state_ += kStep;
    return Mix(state_);
  }
  // Returns a number in [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // Returns an integer in [low, high]; the modulus bias is below 1e-12 for a load's ranges.
  int64_t Integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
  }
  // Returns an exponential number with mean 1.
  double Exponential() { return -std::log1p(-Uniform()); }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  static uint64_t Mix(uint64_t z) {
    z += kStep;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  uint64_t state_;
};

}  // namespace tandem::bench
