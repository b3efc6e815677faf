#include "convert/crew.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace tandem::convert {

using namespace std::chrono_literals;

Crew::~Crew() {
  stopping_ = true;
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Crew::Add(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    ++running_;
  }
  try {
    threads_.emplace_back([this, work = std::move(work)] {
      std::exception_ptr failure;
      try {
        work();
      } catch (...) {  // handed to whoever waits
        failure = std::current_exception();
        stopping_ = true;
      }
      const std::lock_guard lock(mutex_);
      if (failure && !failure_) failure_ = failure;
      --running_;
      ended_.notify_all();
    });
  } catch (...) {  // no thread
    const std::lock_guard lock(mutex_);
    --running_;
    throw;
  }
}

void Crew::WaitForEnd(const std::function<void()>& meanwhile) {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, 50ms, [&] { return running_ == 0; })) {
    lock.unlock();
    meanwhile();
    lock.lock();
  }
}

void Crew::Wait(const std::function<void()>& meanwhile) {
  WaitForEnd(meanwhile);
  if (failure_) std::rethrow_exception(failure_);  // of threads that have ended
  meanwhile();
}

PartQueue::PartQueue(const ModelSource& source, std::vector<int64_t> order)
    : source_(source), order_(std::move(order)) {}

bool PartQueue::Take(const Crew& crew, int64_t* part, int64_t* bytes) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (next_ == order_.size() || crew.stopping()) return false;
    *part = order_[next_];
    *bytes = source_.PartMemory(*part);
    if (in_use_ == 0 || in_use_ + *bytes <= kBudgetBytes) break;
    freed_.wait_for(lock, 50ms);
  }
  ++next_;
  in_use_ += *bytes;
  return true;
}

void PartQueue::GiveBack(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  in_use_ -= bytes;
  freed_.notify_all();
}

void PartQueue::Drain(const Crew& crew, const std::function<void(int64_t part)>& work) {
  int64_t part = 0, bytes = 0;
  while (Take(crew, &part, &bytes)) {
    work(part);  // what it throws ends all, and nobody waits for these bytes any more
    GiveBack(bytes);
  }
}

// What cannot be done, on an older kernel, the faults do.
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

void InPieces(const ModelSource& source, ModelSource::Bytes bytes, const Crew& crew,
              const std::function<void(ModelSource::Bytes piece, size_t offset)>& use) {
  constexpr size_t kPieceBytes = size_t{4} << 20;
  for (size_t at = 0; at < bytes.size() && !crew.stopping(); at += kPieceBytes) {
    const ModelSource::Bytes piece = bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at));
    MapAtOnce(piece);
    use(piece, at);
    source.LetGoOf(piece);
  }
}

}  // namespace tandem::convert
