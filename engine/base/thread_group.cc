#include "engine/base/thread_group.h"

#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"

namespace tandem {

using namespace std::chrono_literals;

ThreadGroup::ThreadGroup(std::function<void()> on_failure) : on_failure_(std::move(on_failure)) {}

ThreadGroup::~ThreadGroup() {
  stopping_ = true;
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void ThreadGroup::Run(const std::function<void()>& work) {
  const std::exception_ptr failure = FaultOf(work);
  const std::lock_guard lock(mutex_);
  if (failure && !failure_) {
    // Set stopping_ only after failure_: errors that other threads throw because of the stop must
    // not become the failure.
    failure_ = failure;
    stopping_ = true;
    if (on_failure_) on_failure_();
  }
  --running_;
  ended_.notify_all();
}

void ThreadGroup::Add(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    ++running_;
  }
  const auto start = [&] { threads_.emplace_back([this, work = std::move(work)] { Run(work); }); };
  const auto undo = [&] {
    const std::lock_guard lock(mutex_);
    --running_;
  };
  const auto refused = ExceptionOf<std::system_error>([&] { UndoOnFailure(start, undo); });
  if (refused) {
    throw Error(ErrorCode::kResourceExhausted,
                std::string("could not start a thread: ") + refused->what());
  }
}

void ThreadGroup::WaitForEnd(const std::function<void()>& meanwhile) {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, 50ms, [&] { return running_ == 0; })) {
    lock.unlock();
    meanwhile();
    lock.lock();
  }
}

void ThreadGroup::Wait(const std::function<void()>& meanwhile) {
  WaitForEnd(meanwhile);
  if (failure_) std::rethrow_exception(failure_);  // of threads that have ended
  meanwhile();
}

// Runs tasks of the round until none is left to start or the group stops. Returns false if it ran
// none.
bool ThreadGroup::RunTasks(Round& round, std::unique_lock<std::mutex>& lock) {
  bool has_run = false;
  // The lock is held from the end of one task to the start of the next. The owner of a round may
  // destroy it as soon as none of its tasks is running.
  while (round.next < round.n && !stopping_) {
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

bool ThreadGroup::Distribute(int64_t n, const std::function<void(int64_t i)>& task) {
  if (n <= 0) return true;
  Round round{n, &task};
  std::unique_lock lock(rounds_mutex_);
  if (n > 1) {
    rounds_.push_back(&round);
    ++events_;
    happened_.notify_all();
  }
  RunTasks(round, lock);
  rounds_.remove(&round);
  const bool all = round.next == n;
  happened_.wait(lock, [&] { return round.running == 0; });
  return all;
}

uint64_t ThreadGroup::events() {
  const std::lock_guard lock(rounds_mutex_);
  return events_;
}

void ThreadGroup::HelpOrWait(uint64_t seen) {
  std::unique_lock lock(rounds_mutex_);
  if (!rounds_.empty() && RunTasks(*rounds_.front(), lock)) return;
  happened_.wait_for(lock, 50ms, [&] { return events_ != seen; });
}

void ThreadGroup::Wake() {
  const std::lock_guard lock(rounds_mutex_);
  ++events_;
  happened_.notify_all();
}

BudgetedQueue::BudgetedQueue(std::vector<int64_t> order,
                             std::function<int64_t(int64_t part)> memory_of)
    : order_(std::move(order)), memory_of_(std::move(memory_of)) {}

BudgetedQueue::Next BudgetedQueue::Take(const ThreadGroup& group, int64_t* part, int64_t* bytes) {
  const std::lock_guard lock(mutex_);
  if (group.stopping()) return Next::kEnd;
  if (next_ == order_.size()) return in_hand_ == 0 ? Next::kEnd : Next::kWait;
  *part = order_[next_];
  *bytes = memory_of_(*part);
  if (in_hand_ > 0 && in_use_ + *bytes > kBudgetBytes) return Next::kWait;
  ++next_;
  ++in_hand_;
  in_use_ += *bytes;
  return Next::kPart;
}

void BudgetedQueue::GiveBack(ThreadGroup& group, int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    --in_hand_;
    in_use_ -= bytes;
  }
  group.Wake();
}

void BudgetedQueue::Drain(ThreadGroup& group, const Work& work) {
  const ParallelFor parallel_for = [&](int64_t n, const std::function<void(int64_t i)>& task) {
    return group.Distribute(n, task);
  };
  int64_t part = 0, bytes = 0;
  for (;;) {
    const uint64_t seen = group.events();
    const Next next = Take(group, &part, &bytes);
    if (next == Next::kEnd) return;
    if (next == Next::kWait) {
      group.HelpOrWait(seen);
      continue;
    }
    work(part, parallel_for);  // a throw stops the group, so the bytes need no return
    GiveBack(group, bytes);
  }
}

}  // namespace tandem
