#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

namespace tandem {

// The parallel regions of a piece of work, in order. A region is one call of
// ThreadPool::ParallelFor. Times are seconds.
struct ParallelRecord {
  struct Region {
    double serial_seconds = 0;         // the caller's own work before this region
    double weight_bytes = 0;           // bytes of weights that all tasks read together, each once
    std::vector<double> task_seconds;  // by index
  };
  std::vector<Region> regions;
  double last_serial_seconds = 0;  // the caller's own work after the last region
};

// Records the regions that the calling thread starts during the life of this object. Threads
// without a trace test one thread-local pointer per region. An inner trace pauses the outer one.
// Destroy it on the thread that made it.
class ParallelTrace {
 public:
  using Task = std::function<void(int64_t index, int worker)>;

  ParallelTrace();
  ~ParallelTrace();
  ParallelTrace(const ParallelTrace&) = delete;
  ParallelTrace& operator=(const ParallelTrace&) = delete;

  // Returns the regions since the last call, or since the beginning.
  ParallelRecord Take();

  // Returns null without a trace.
  static ParallelTrace* OfThisThread() { return current_; }

  // For ops: the next region reads bytes() bytes of weights. Calls are added up.
  template <class Bytes>
  static void NoteWeights(const Bytes& bytes) {
    if (current_ != nullptr) [[unlikely]] {
      current_->next_weight_bytes_ += static_cast<double>(bytes());
    }
  }

  // For ThreadPool: calls run(timed), where timed() is `task` with a clock. A ParallelFor in `run`
  // is not recorded.
  void Record(int64_t n_tasks, const Task& task, const std::function<void(const Task& timed)>& run);

 private:
  using Clock = std::chrono::steady_clock;

  static inline constinit thread_local ParallelTrace* current_ = nullptr;

  ParallelTrace* const outer_;
  ParallelRecord record_;
  double next_weight_bytes_ = 0;
  Clock::time_point serial_from_;
};

}  // namespace tandem
