#include "convert/orbax/parallel_for.h"

#include <atomic>
#include <exception>
#include <mutex>

#include "engine/base/error.h"

namespace tandem::convert {

bool OneByOne(int64_t n, const std::function<void(int64_t i)>& task) {
  for (int64_t i = 0; i < n; ++i) task(i);
  return true;
}

void RunAll(const ParallelFor& parallel_for, int64_t n,
            const std::function<void(int64_t i)>& task) {
  std::atomic<int64_t> failed{n};  // lowest i that failed so far
  std::mutex mutex;                // guards fault and writes of failed
  std::exception_ptr fault;
  const bool all = parallel_for(n, [&](int64_t i) {
    // Tasks below the lowest failure always run, so the reported one does not depend on timing.
    if (i > failed) return;
    try {
      task(i);
    } catch (...) {  // rethrown below
      const std::lock_guard lock(mutex);
      if (i > failed) return;
      failed = i;
      fault = std::current_exception();
    }
  });
  if (fault) std::rethrow_exception(fault);
  if (!all) throw Error(ErrorCode::kCancelled, "stopped");
}

}  // namespace tandem::convert
