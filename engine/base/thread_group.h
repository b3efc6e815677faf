#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/base/parallel_for.h"

namespace tandem {

// Threads that work on one task together. The first failure stops all of them. Work may block, for
// example on files or sockets; ThreadPool is for kernels.
//
// Distribute shares a loop of one thread with the idle threads of the group, which call HelpOrWait
// until all work is done.
class ThreadGroup {
 public:
  // Calls `on_failure` once, from the thread that failed first. It ends the waits of the others
  // that do not poll stopping(). It must not throw.
  explicit ThreadGroup(std::function<void()> on_failure = {});
  ~ThreadGroup();  // stops the threads and joins them
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  // Starts a thread. Throws kResourceExhausted when the system allows no more threads.
  void Add(std::function<void()> work);
  // Work polls this between pieces. Any thread.
  bool stopping() const { return stopping_; }
  // Calls `meanwhile` 20 times a second until all threads have ended, and once after that. Rethrows
  // the first failure of a thread. If `meanwhile` throws, the destructor stops the threads.
  void Wait(const std::function<void()>& meanwhile = [] {});
  // Like Wait, but ignores failures of the threads and omits the last call.
  void WaitForEnd(const std::function<void()>& meanwhile);

  // A ParallelFor. Threads in HelpOrWait take tasks too. Returns false if the group stopped before
  // all tasks had started.
  bool Distribute(int64_t n, const std::function<void(int64_t i)>& task);

  // Runs tasks of a Distribute if there are any. Otherwise returns when an event follows `seen`, a
  // result of events(), or after 50 ms.
  void HelpOrWait(uint64_t seen);
  uint64_t events();
  // Announces an event to threads in HelpOrWait.
  void Wake();

 private:
  // One call of Distribute.
  struct Round {
    int64_t n;
    const std::function<void(int64_t)>* task;
    int64_t next = 0;     // first task not yet started
    int64_t running = 0;  // tasks started but not finished
  };

  void Run(const std::function<void()>& work);
  bool RunTasks(Round& round, std::unique_lock<std::mutex>& lock);

  const std::function<void()> on_failure_;
  std::atomic<bool> stopping_{false};

  std::mutex mutex_;  // guards running_ and failure_
  std::condition_variable ended_;
  int running_ = 0;
  std::exception_ptr failure_;

  std::mutex rounds_mutex_;  // guards the members below and the rounds
  std::condition_variable happened_;
  uint64_t events_ = 0;
  std::list<Round*> rounds_;  // rounds with tasks not yet started

  std::vector<std::thread> threads_;
};

// Hands out numbered parts of a task to the threads of a group, in a given order. All parts
// in work take at most kBudgetBytes of memory together; a larger part is worked on alone.
class BudgetedQueue {
 public:
  static constexpr int64_t kBudgetBytes = int64_t{256} << 20;

  // `memory_of(part)`: bytes of memory that the part takes during its work.
  BudgetedQueue(std::vector<int64_t> order, std::function<int64_t(int64_t part)> memory_of);

  // Calls `work` for parts until none is left or the group stops. Every thread that takes part
  // calls Drain. A thread without a part, for lack of memory or of parts, helps with the
  // parallel_for of other threads.
  using Work = std::function<void(int64_t part, const ParallelFor& parallel_for)>;
  void Drain(ThreadGroup& group, const Work& work);

 private:
  enum class Next { kPart, kWait, kEnd };
  Next Take(const ThreadGroup& group, int64_t* part, int64_t* bytes);
  void GiveBack(ThreadGroup& group, int64_t bytes);

  const std::vector<int64_t> order_;
  const std::function<int64_t(int64_t part)> memory_of_;
  std::mutex mutex_;  // guards the members below
  size_t next_ = 0;
  int64_t in_hand_ = 0;  // parts
  int64_t in_use_ = 0;   // bytes
};

}  // namespace tandem
