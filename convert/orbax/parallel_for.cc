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
  std::atomic<int64_t> failed{n};  // the first that did, so far
  std::mutex mutex;                // guards fault, and writing failed
  std::exception_ptr fault;
  const bool all = parallel_for(n, [&](int64_t i) {
    // None below the first that fails is left out, so that it is the same one every time.
    if (i > failed) return;
    try {
      task(i);
    } catch (...) {  // handed on below
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
