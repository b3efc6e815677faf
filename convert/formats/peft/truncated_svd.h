#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/base/thread_pool.h"

namespace tandem::convert {

// The largest singular values of a matrix M [rows, cols] and their vectors: the nearest matrix of
// that rank is the sum over i of values[i] left[i] right[i]ᵀ.
struct TruncatedSvd {
  int64_t rank = 0;
  std::vector<double> values;  // [rank], descending
  std::vector<double> left;    // [rank, rows]; of a value of 0 all 0
  std::vector<double> right;   // [rank, cols]; the same
};

// By subspace iteration from a fixed start, in f64: exact up to rounding where M has no higher rank
// or a few singular values more, and near the best rank elsewhere. Bits do not depend on the number
// of threads. `pause` is called between passes over M; what it throws ends the computation. Takes
// about 50 bytes (rows + cols) (rank + 8). REQUIRES: 1 <= rank <= min(rows, cols); finite numbers.
TruncatedSvd ComputeTruncatedSvd(std::span<const float> matrix, int64_t rows, int64_t cols,
                                 int64_t rank, ThreadPool& pool,
                                 const std::function<void()>& pause);

}  // namespace tandem::convert
