#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem {

// Fork-join compute workers. The calling thread is worker 0 and takes part; ParallelFor returns
// when every task has run. Tasks are numbered by shape and claimed dynamically, so which worker
// computes a task never changes a result. Workers spin for at most 20 us and then sleep.
//
// One thread at a time may call ParallelFor; tasks must not call it and must not throw.
class ThreadPool {
 public:
  // `n_threads` counts the caller; 0 means one per physical core allowed to this process.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs task(index, worker) for index in [0, n_tasks); worker is in [0, n_threads).
  void ParallelFor(int64_t n_tasks, const std::function<void(int64_t index, int worker)>& task);

 private:
  void WorkerLoop(int worker);
  void RunTasks(int worker);

  std::vector<std::thread> workers_;
  std::mutex mutex_;  // guards sleeping and the wake-up of workers
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};  // rises once per ParallelFor
  std::atomic<int64_t> next_task_{0};
  std::atomic<int> busy_workers_{0};
  std::atomic<bool> stopping_{false};
  int64_t n_tasks_ = 0;
  const std::function<void(int64_t, int)>* task_ = nullptr;
};

// Physical cores this process may use (affinity and cgroup quota considered); at least 1.
int UsableCores();

}  // namespace tandem
