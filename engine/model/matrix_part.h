#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/ops/rows.h"
#include "engine/tensor/dtype.h"

namespace tandem::engine {

// Consecutive rows of a matrix.
inline Matrix PartOf(const Matrix& all, int64_t first_row, int64_t n_rows) {
  auto* data = static_cast<std::byte*>(all.data) +
               first_row * all.stride * static_cast<int64_t>(DTypeBytes(all.dtype));
  return {data, all.dtype, n_rows, all.cols, all.stride};
}
inline ConstMatrix PartOf(const ConstMatrix& all, int64_t first_row, int64_t n_rows) {
  const auto* data = static_cast<const std::byte*>(all.data) +
                     first_row * all.stride * static_cast<int64_t>(DTypeBytes(all.dtype));
  return {data, all.dtype, n_rows, all.cols, all.stride};
}

}  // namespace tandem::engine
