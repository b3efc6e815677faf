#pragma once

#include <cstdint>
#include <functional>

namespace tandem::convert {

// Calls task(i) for every i in [0, n), in this order, on this thread and whatever others take part,
// and returns when all have ended. False: some were not called, since everything is to stop. Tasks
// do not throw.
using ParallelFor = std::function<bool(int64_t n, const std::function<void(int64_t i)>& task)>;

// On this thread alone.
bool OneByOne(int64_t n, const std::function<void(int64_t i)>& task);

// The same for tasks that may throw: of those that did, the first in order goes on, whatever number
// of threads there is; those behind it are left out as far as they had not begun. Throws kCancelled
// where everything is to stop.
void RunAll(const ParallelFor& parallel_for, int64_t n, const std::function<void(int64_t i)>& task);

}  // namespace tandem::convert
