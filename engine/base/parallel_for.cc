#include "engine/base/parallel_for.h"

#include <atomic>
#include <exception>
#include <mutex>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"

namespace tandem {
namespace {

// The failure of the lowest task. Tasks below the lowest failure always run, so the reported one
// does not depend on timing.
class LowestFailure {
 public:
  explicit LowestFailure(int64_t n_tasks) : failed_(n_tasks) {}

  template <class Task>
  void Run(int64_t i, const Task& task) {
    if (i > failed_) return;
    const std::exception_ptr fault = FaultOf(task);
    if (fault == nullptr) return;
    const std::lock_guard lock(mutex_);
    if (i > failed_) return;
    failed_ = i;
    fault_ = fault;
  }

  // Call after all tasks have ended.
  void Rethrow() const {
    if (fault_ != nullptr) std::rethrow_exception(fault_);
  }

 private:
  std::atomic<int64_t> failed_;  // lowest i that failed so far
  std::mutex mutex_;             // guards fault_ and writes of failed_
  std::exception_ptr fault_;
};

}  // namespace

bool OneByOne(int64_t n, const std::function<void(int64_t i)>& task) {
  for (int64_t i = 0; i < n; ++i) task(i);
  return true;
}

void RunAll(const ParallelFor& parallel_for, int64_t n,
            const std::function<void(int64_t i)>& task) {
  LowestFailure failure(n);
  const bool all = parallel_for(n, [&](int64_t i) { failure.Run(i, [&] { task(i); }); });
  failure.Rethrow();
  if (!all) throw Error(ErrorCode::kCancelled, "stopped");
}

void RunAll(ThreadPool& pool, int64_t n, const std::function<void(int64_t i, int worker)>& task) {
  LowestFailure failure(n);
  pool.ParallelFor(n, [&](int64_t i, int worker) { failure.Run(i, [&] { task(i, worker); }); });
  failure.Rethrow();
}

}  // namespace tandem
