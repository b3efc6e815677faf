#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "engine/base/check.h"
#include "engine/ops/ops_context.h"
#include "engine/tensor/bfloat16.h"
#include "engine/tensor/dtype.h"

namespace tandem::engine {

// Below this many elements (or multiply-adds / 16) waking another core costs more than it saves.
inline constexpr int64_t kElementsPerTask = 8192;

// Runs body(first, count, worker) over [0, n) in runs of `grain`. Results never depend on the grain
// or on the worker. The body must not throw: reserve scratch before.
template <class Body>
void ParallelRanges(OpsContext& ops, int64_t n, int64_t grain, const Body& body) {
  if (n <= 0) return;
  if (n <= grain) {
    body(int64_t{0}, n, 0);
    return;
  }
  const auto task = [&](int64_t index, int worker) {
    const int64_t first = index * grain;
    body(first, std::min(grain, n - first), worker);
  };
  // A reference fits into std::function without an allocation.
  ops.pool().ParallelFor((n + grain - 1) / grain, std::cref(task));
}

// ParallelRanges over rows of `cols` elements.
template <class Body>
void ParallelRows(OpsContext& ops, int64_t rows, int64_t cols, const Body& body) {
  ParallelRanges(ops, rows, std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, cols)),
                 body);
}

// Grows every worker's scratch now, so that WorkerScratch inside the tasks cannot fail.
inline void ReserveWorkerScratch(OpsContext& ops, size_t bytes) {
  for (int worker = 0; worker < ops.pool().n_threads(); ++worker) ops.WorkerScratch(worker, bytes);
}

// Calls f.operator()<T>() with the element type of a compute dtype.
template <class F>
void WithComputeType(DType dtype, const F& f) {
  TANDEM_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  if (dtype == DType::kF32) {
    f.template operator()<float>();
  } else {
    f.template operator()<Bf16>();
  }
}

}  // namespace tandem::engine
