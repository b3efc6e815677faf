#pragma once

#include <cstdint>

namespace tandem::engine {

// Which positions of a text make its embedding. Their final hidden states (after the final norm,
// before the head) are averaged.
enum class Pooling : uint8_t {
  kMean,  // all positions
  kLast,  // the last position
  kCls,   // the first position
};

// The pooled positions of a text of `length` tokens: [begin, end).
struct PooledPositions {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const { return end - begin; }
};

constexpr PooledPositions PositionsOf(Pooling pooling, int64_t length) {
  if (pooling == Pooling::kLast) return {length - 1, length};
  return {0, pooling == Pooling::kCls ? 1 : length};
}

}  // namespace tandem::engine
