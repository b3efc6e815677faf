#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace tandem::convert {

// Side of a tile to transpose; it stays in the L1 cache.
inline constexpr int64_t kTile = 64;

namespace transpose {

template <class T>
inline constexpr int kLanes = static_cast<int>(16 / sizeof(T));

template <class T>
struct Lanes {
  typedef T type __attribute__((vector_size(16)));
};

template <class V, int... kI>
inline V Low(V a, V b, std::integer_sequence<int, kI...> /*lanes*/) {
  constexpr int kN = sizeof...(kI);
  return __builtin_shufflevector(a, b, (kI / 2 + (kI % 2) * kN)...);
}
template <class V, int... kI>
inline V High(V a, V b, std::integer_sequence<int, kI...> /*lanes*/) {
  constexpr int kN = sizeof...(kI);
  return __builtin_shufflevector(a, b, (kN / 2 + kI / 2 + (kI % 2) * kN)...);
}

// Transposes a square of as many rows as lanes: row i and the row half a square below are
// interleaved, log2(n) times.
template <class T>
inline void Block(const T* from, T* to) {
  using V = typename Lanes<T>::type;
  constexpr int kN = kLanes<T>;
  constexpr auto kAll = std::make_integer_sequence<int, kN>();
  V rows[kN];
  V next[kN];
  for (int i = 0; i < kN; ++i) std::memcpy(&rows[i], from + i * kTile, sizeof(V));
  for (int stage = 1; stage < kN; stage *= 2) {
    for (int i = 0; i < kN / 2; ++i) {
      next[2 * i] = Low<V>(rows[i], rows[i + kN / 2], kAll);
      next[2 * i + 1] = High<V>(rows[i], rows[i + kN / 2], kAll);
    }
    std::memcpy(rows, next, sizeof(rows));
  }
  for (int i = 0; i < kN; ++i) std::memcpy(to + i * kTile, &rows[i], sizeof(V));
}

}  // namespace transpose

// Writes to `to` the transpose of the top left [rows, columns] of `from`, rounded up to whole
// blocks. Both are [kTile, kTile].
template <class T>
void TransposeTile(const T* from, int64_t rows, int64_t columns, T* to) {
  constexpr int64_t kN = transpose::kLanes<T>;
  for (int64_t row = 0; row < rows; row += kN) {
    for (int64_t column = 0; column < columns; column += kN) {
      transpose::Block<T>(from + row * kTile + column, to + column * kTile + row);
    }
  }
}

}  // namespace tandem::convert
