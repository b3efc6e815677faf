#include "training/data/order/grain_permutation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <random>

#include "engine/base/check.h"

namespace tandem::training {
namespace {

constexpr int kLeastBits = 16;
constexpr size_t kRounds = 4;

// The Simon cipher on words of half a block.
class Simon {
 public:
  Simon(uint32_t seed, int half) : half_(half), mask_((uint64_t{1} << half) - 1) {
    std::seed_seq sequence{seed};
    sequence.generate(keys_.begin(), keys_.end());
  }

  uint64_t operator()(uint64_t block) const {
    uint64_t left = (block >> half_) & mask_;
    uint64_t right = block & mask_;
    for (size_t round = 0; round < kRounds; round += 2) {
      left ^= (Mix(right) ^ keys_[round]) & mask_;
      right ^= (Mix(left) ^ keys_[round + 1]) & mask_;
    }
    return left << half_ | right;
  }

 private:
  uint64_t Left(uint64_t x, int n) const { return (x << n | x >> (half_ - n)) & mask_; }
  uint64_t Mix(uint64_t x) const { return (Left(x, 1) & Left(x, 8 % half_)) ^ Left(x, 2); }

  int half_;
  uint64_t mask_;
  std::array<uint32_t, kRounds> keys_{};
};

// ceil(log2(x)); 0 for x = 0 and 1.
int CeilLog2(uint64_t x) { return x < 2 ? 0 : std::bit_width(x - 1); }

}  // namespace

int64_t GrainPermute(uint32_t seed, int64_t n, int64_t i) {
  TANDEM_CHECK(n > 0 && i >= 0 && i < n);
  const auto last = static_cast<uint64_t>(n - 1);
  const int bits = CeilLog2(last);
  const Simon cipher(seed, std::max(bits + bits % 2, kLeastBits) / 2);
  auto x = static_cast<uint64_t>(i);
  do {
    x = cipher(x);
  } while (x > last);
  return static_cast<int64_t>(x);
}

}  // namespace tandem::training
