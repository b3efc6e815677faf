#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>

namespace tandem::convert {

class ThreadGroup;

// Shares the work of one thread of a group with its idle threads. Any thread may call it.
class WorkStealing {
 public:
  // A ParallelFor; idle threads help. Returns false when the group stops.
  bool Distribute(const ThreadGroup& group, int64_t n, const std::function<void(int64_t i)>& task);

  // For waiting threads: runs queued tasks if there are any. Otherwise returns when an event
  // follows `seen`, or after 50 ms.
  uint64_t seen();
  void HelpOrWait(const ThreadGroup& group, uint64_t seen);
  // Announces an event that other threads may wait for.
  void Wake();

 private:
  struct Round {
    int64_t n;
    const std::function<void(int64_t)>* task;
    int64_t next = 0;     // first task not yet started
    int64_t running = 0;  // tasks started but not finished
  };

  // Runs tasks until none is left to start or the group stops. Returns false if it ran none.
  bool Run(const ThreadGroup& group, Round& round, std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // guards the members below and the rounds
  std::condition_variable happened_;
  uint64_t events_ = 0;
  std::list<Round*> rounds_;  // rounds with tasks not yet started
};

}  // namespace tandem::convert
