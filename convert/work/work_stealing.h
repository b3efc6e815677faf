#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>

namespace tandem::convert {

class ThreadGroup;

// Work that the threads of a group do for each other: one that has much to do gives it out, others
// that would wait take part. Any thread.
class WorkStealing {
 public:
  // A ParallelFor, with whoever helps meanwhile; false when the group stops.
  bool Distribute(const ThreadGroup& group, int64_t n, const std::function<void(int64_t i)>& task);

  // For threads that wait for something: helps where there is work, else returns on what happened
  // since `seen`, or after 50 ms.
  uint64_t seen();
  void HelpOrWait(const ThreadGroup& group, uint64_t seen);
  // Something happened that others may wait for.
  void Wake();

 private:
  struct Round {
    int64_t n;
    const std::function<void(int64_t)>* task;
    int64_t next = 0;     // the first that nobody has begun
    int64_t running = 0;  // tasks begun and not ended
  };

  // Runs tasks until none is left to begin, or all are to stop; false: it ran none.
  bool Run(const ThreadGroup& group, Round& round, std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // guards what follows, and the rounds
  std::condition_variable happened_;
  uint64_t events_ = 0;
  std::list<Round*> rounds_;  // with tasks that nobody has begun
};

}  // namespace tandem::convert
