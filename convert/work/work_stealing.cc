#include "convert/work/work_stealing.h"

#include <chrono>

#include "convert/work/thread_group.h"

namespace tandem::convert {

using namespace std::chrono_literals;

bool WorkStealing::Run(const ThreadGroup& group, Round& round, std::unique_lock<std::mutex>& lock) {
  bool has_run = false;
  // The lock is held from the end of one task to the start of the next. The owner of a round may
  // destroy it as soon as none of its tasks is running.
  while (round.next < round.n && !group.stopping()) {
    const int64_t i = round.next++;
    if (round.next == round.n) rounds_.remove(&round);
    ++round.running;
    lock.unlock();
    (*round.task)(i);
    lock.lock();
    if (--round.running == 0) happened_.notify_all();
    has_run = true;
  }
  return has_run;
}

bool WorkStealing::Distribute(const ThreadGroup& group, int64_t n,
                              const std::function<void(int64_t i)>& task) {
  if (n <= 0) return true;
  Round round{n, &task};
  std::unique_lock lock(mutex_);
  if (n > 1) {
    rounds_.push_back(&round);
    ++events_;
    happened_.notify_all();
  }
  Run(group, round, lock);
  rounds_.remove(&round);
  const bool all = round.next == n;
  happened_.wait(lock, [&] { return round.running == 0; });
  return all;
}

uint64_t WorkStealing::seen() {
  const std::lock_guard lock(mutex_);
  return events_;
}

void WorkStealing::HelpOrWait(const ThreadGroup& group, uint64_t seen) {
  std::unique_lock lock(mutex_);
  if (!rounds_.empty() && Run(group, *rounds_.front(), lock)) return;
  happened_.wait_for(lock, 50ms, [&] { return events_ != seen; });
}

void WorkStealing::Wake() {
  const std::lock_guard lock(mutex_);
  ++events_;
  happened_.notify_all();
}

}  // namespace tandem::convert
