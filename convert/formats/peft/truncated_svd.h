#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/base/thread_pool.h"

namespace tandem::convert {

// The largest singular values of a matrix M [rows, cols] with their vectors. The sum over i of
// values[i] left[i] right[i]ᵀ approximates M best at that rank.
struct TruncatedSvd {
  int64_t rank = 0;
  std::vector<double> values;  // [rank], descending
  std::vector<double> left;    // [rank, rows]; zero for a value of 0
  std::vector<double> right;   // [rank, cols]; likewise
};

// Computes it in f64 by subspace iteration from a fixed start. The result is exact up to rounding
// if M has at most slightly more than `rank` singular values, else near the best rank. It does not
// depend on the number of threads. `pause` is called between passes over M; a throw ends the
// computation. Memory is about 50 bytes (rows + cols) (rank + 8). REQUIRES: 1 <= rank <= min(rows,
// cols); finite numbers.
TruncatedSvd ComputeTruncatedSvd(std::span<const float> matrix, int64_t rows, int64_t cols,
                                 int64_t rank, ThreadPool& pool,
                                 const std::function<void()>& pause);

}  // namespace tandem::convert
