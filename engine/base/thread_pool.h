#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem {

// Fork-join compute workers. The calling thread is worker 0. ParallelFor returns when every task
// has run. Workers claim tasks dynamically, but task numbers depend on shapes only, so the
// assignment never changes a result. Workers spin for at most 20 us and then sleep. A caller never
// waits for a worker without a task: a late worker finds nothing to do.
//
// One thread at a time may call ParallelFor. Tasks must not call it and must not throw.
class ThreadPool {
 public:
  // `n_threads` counts the caller; 0 means one per physical core allowed to this process.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs task(index, worker) for index in [0, n_tasks); worker is in [0, n_threads).
  // REQUIRES: n_tasks < 2^32.
  void ParallelFor(int64_t n_tasks, const std::function<void(int64_t index, int worker)>& task);

 private:
  void WorkerLoop(int worker);
  int64_t RunTasks(int worker);
  void Sleep(uint64_t seen);

  // The current round: its number in the upper half, its unclaimed tasks in the lower half. A claim
  // is a compare-and-swap that takes one from the lower half. Its winner holds a task of the
  // running round, which cannot end before finished_ counts that task. The
  // winner may therefore read task_ and n_tasks_. Without a claim they must not be read.
  alignas(64) std::atomic<uint64_t> round_{0};
  alignas(64) std::atomic<int64_t> finished_{0};  // tasks of this round run by workers
  alignas(64) int64_t n_tasks_ = 0;
  const std::function<void(int64_t, int)>* task_ = nullptr;

  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // held while falling asleep and before waking, so that no wake-up is lost
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

// Physical cores this process may use, by affinity and cgroup quota; at least 1.
int UsableCores();

}  // namespace tandem
