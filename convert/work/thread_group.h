#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "convert/tensors/model_source.h"
#include "convert/work/work_stealing.h"

namespace tandem::convert {

// Threads that work on one task together. The first failure stops all of them.
class ThreadGroup {
 public:
  ThreadGroup() = default;
  ~ThreadGroup();  // stops the threads and joins them
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  void Add(std::function<void()> work);
  // Work polls this between pieces. Any thread.
  bool stopping() const { return stopping_; }
  // Calls `meanwhile` 20 times a second until all threads have ended, and once after that. Rethrows
  // the first failure of a thread. If `meanwhile` throws, the destructor stops the threads.
  void Wait(const std::function<void()>& meanwhile);
  // Like Wait, but ignores failures of the threads and omits the last call.
  void WaitForEnd(const std::function<void()>& meanwhile);

 private:
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // guards running_ and failure_
  std::condition_variable ended_;
  int running_ = 0;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

// Hands out the parts of a source to several threads in a given order. The parts being read take at
// most kBudgetBytes together, or one larger part is read alone.
class BudgetedQueue {
 public:
  static constexpr int64_t kBudgetBytes = int64_t{256} << 20;

  BudgetedQueue(const ModelSource& source, std::vector<int64_t> order);
  // Calls `work` for parts until none is left or the group stops. Every thread that takes part
  // calls Drain. A thread without a part, for lack of memory or of parts, helps with the
  // parallel_for of other threads (ModelSource::ReadPieces).
  using Work = std::function<void(int64_t part, const ParallelFor& parallel_for)>;
  void Drain(const ThreadGroup& group, const Work& work);

 private:
  enum class Next { kPart, kWait, kEnd };
  Next Take(const ThreadGroup& group, int64_t* part, int64_t* bytes);
  void GiveBack(int64_t bytes);

  const ModelSource& source_;
  const std::vector<int64_t> order_;
  WorkStealing shared_;
  std::mutex mutex_;  // guards the members below
  size_t next_ = 0;
  int64_t in_hand_ = 0;  // parts
  int64_t in_use_ = 0;   // bytes
};

// Prefaults the pages of a mapped range with one call (MADV_POPULATE_READ), instead of a fault for
// every few pages.
void MapAtOnce(ModelSource::Bytes bytes);

// Calls `use` with pieces of 4 MiB and releases each piece that lies in a mapped file. Returns
// early when the group stops.
void InPieces(const ModelSource& source, ModelSource::Bytes bytes, const ThreadGroup& group,
              const std::function<void(ModelSource::Bytes piece, size_t offset)>& use);

}  // namespace tandem::convert
