#include "convert/work/thread_group.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace tandem::convert {

using namespace std::chrono_literals;

ThreadGroup::~ThreadGroup() {
  stopping_ = true;
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void ThreadGroup::Add(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    ++running_;
  }
  try {
    threads_.emplace_back([this, work = std::move(work)] {
      std::exception_ptr failure;
      try {
        work();
      } catch (...) {  // rethrown by Wait
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (failure && !failure_) failure_ = failure;
      // Set stopping_ only after failure_: errors that other threads throw because of the stop must
      // not become the failure.
      if (failure) stopping_ = true;
      --running_;
      ended_.notify_all();
    });
  } catch (...) {  // the thread could not be started
    const std::lock_guard lock(mutex_);
    --running_;
    throw;
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

BudgetedQueue::BudgetedQueue(const ModelSource& source, std::vector<int64_t> order)
    : source_(source), order_(std::move(order)) {}

BudgetedQueue::Next BudgetedQueue::Take(const ThreadGroup& group, int64_t* part, int64_t* bytes) {
  const std::lock_guard lock(mutex_);
  if (group.stopping()) return Next::kEnd;
  if (next_ == order_.size()) return in_hand_ == 0 ? Next::kEnd : Next::kWait;
  *part = order_[next_];
  *bytes = source_.PartMemory(*part);
  if (in_hand_ > 0 && in_use_ + *bytes > kBudgetBytes) return Next::kWait;
  ++next_;
  ++in_hand_;
  in_use_ += *bytes;
  return Next::kPart;
}

void BudgetedQueue::GiveBack(int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    --in_hand_;
    in_use_ -= bytes;
  }
  shared_.Wake();
}

void BudgetedQueue::Drain(const ThreadGroup& group, const Work& work) {
  const ParallelFor parallel_for = [&](int64_t n, const std::function<void(int64_t i)>& task) {
    return shared_.Distribute(group, n, task);
  };
  int64_t part = 0, bytes = 0;
  for (;;) {
    const uint64_t seen = shared_.seen();
    const Next next = Take(group, &part, &bytes);
    if (next == Next::kEnd) return;
    if (next == Next::kWait) {
      shared_.HelpOrWait(group, seen);
      continue;
    }
    work(part, parallel_for);  // a throw stops the group, so the bytes need no return
    GiveBack(bytes);
  }
}

// Ignores errors: on an older kernel page faults load the pages one by one.
void MapAtOnce(ModelSource::Bytes piece) {
#ifdef MADV_POPULATE_READ
  constexpr uintptr_t kPageBytes = 4096;
  const size_t before = reinterpret_cast<uintptr_t>(piece.data()) % kPageBytes;
  void* page = const_cast<std::byte*>(piece.data()) - before;
  (void)madvise(page, before + piece.size(), MADV_POPULATE_READ);
#else
  (void)piece;
#endif
}

void InPieces(const ModelSource& source, ModelSource::Bytes bytes, const ThreadGroup& group,
              const std::function<void(ModelSource::Bytes piece, size_t offset)>& use) {
  constexpr size_t kPieceBytes = size_t{4} << 20;
  for (size_t at = 0; at < bytes.size() && !group.stopping(); at += kPieceBytes) {
    const ModelSource::Bytes piece = bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at));
    MapAtOnce(piece);
    use(piece, at);
    source.LetGoOf(piece);
  }
}

}  // namespace tandem::convert
