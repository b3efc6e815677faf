#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "engine/base/check.h"
#include "engine/kernels/kernels.h"

namespace tandem::engine {

// Packs row-major x [rows, cols] into panels whose lanes are rows (kernels.h): [rows/16][cols/2]
// [16][2] for bf16, [rows/16][cols][16] for f32, padded with zeros. Only moves numbers.
template <class T>
void PackLanes(const KernelTable& kernels, const T* x, int64_t ldx, int64_t rows, int64_t cols,
               T* panels) {
  constexpr int64_t kPair = std::is_same_v<T, float> ? 1 : 2;
  const int64_t padded = RoundUp(cols, kPair);
  // Panels of pairs are the transpose of rows of 32-bit words.
  const bool are_words =
      cols % kPair == 0 && ldx % kPair == 0 && reinterpret_cast<uintptr_t>(x) % alignof(float) == 0;
  for (int64_t first = 0; first < rows; first += kLanes) {
    const int64_t lanes = std::min(kLanes, rows - first);
    const T* from = x + first * ldx;
    T* panel = panels + first * padded;
    if (lanes < kLanes || cols < padded) {
      std::memset(panel, 0, static_cast<size_t>(padded * kLanes) * sizeof(T));
    }
    if (are_words) {
      kernels.f32.transpose_rows({.x = reinterpret_cast<const float*>(from),
                                  .ldx = ldx / kPair,
                                  .rows = lanes,
                                  .cols = cols / kPair,
                                  .out = reinterpret_cast<float*>(panel),
                                  .ldout = kLanes});
      continue;
    }
    for (int64_t lane = 0; lane < lanes; ++lane) {
      T* to = panel + lane * kPair;
      for (int64_t i = 0; i < cols; ++i) {
        to[i / kPair * kPair * kLanes + i % kPair] = from[lane * ldx + i];
      }
    }
  }
}

}  // namespace tandem::engine
