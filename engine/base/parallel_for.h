#pragma once

#include <cstdint>
#include <functional>

namespace tandem {

class ThreadPool;

// Starts task(i) for i in [0, n) in order, on this thread and any helpers, and returns when all
// have ended. Returns false if some were skipped because of a stop. Tasks must not throw.
using ParallelFor = std::function<bool(int64_t n, const std::function<void(int64_t i)>& task)>;

// Runs all tasks on this thread.
bool OneByOne(int64_t n, const std::function<void(int64_t i)>& task);

// Like ParallelFor for tasks that may throw. Rethrows the exception of the lowest i, for any number
// of threads; tasks after it that have not started are skipped. Throws kCancelled after a stop.
void RunAll(const ParallelFor& parallel_for, int64_t n, const std::function<void(int64_t i)>& task);
// Likewise on a pool.
void RunAll(ThreadPool& pool, int64_t n, const std::function<void(int64_t i, int worker)>& task);

}  // namespace tandem
