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

// Threads that do one thing together. The first that fails ends all.
class ThreadGroup {
 public:
  ThreadGroup() = default;
  ~ThreadGroup();  // has them stop, and waits for them
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  void Add(std::function<void()> work);
  // Looked at between pieces of work, by any thread.
  bool stopping() const { return stopping_; }
  // Calls `meanwhile` 20 times a second, and once more when all have ended. What it throws, or the
  // first of them threw, ends them all and goes on.
  void Wait(const std::function<void()>& meanwhile);
  // The same for work that may fail: nobody hears of it.
  void WaitForEnd(const std::function<void()>& meanwhile);

 private:
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // guards running_ and failure_
  std::condition_variable ended_;
  int running_ = 0;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

// The parts of a source that several threads read, in a given order, as far as memory goes: what
// parts in hand hold stays within kBudgetBytes, or is one part.
class BudgetedQueue {
 public:
  static constexpr int64_t kBudgetBytes = int64_t{256} << 20;

  BudgetedQueue(const ModelSource& source, std::vector<int64_t> order);
  // Does `work` for parts until none is left, or the group stops. From each thread that takes part;
  // those that have no part, for want of memory or since there are no more, take part in what
  // others do parallel_for (ModelSource::ReadPieces).
  using Work = std::function<void(int64_t part, const ParallelFor& parallel_for)>;
  void Drain(const ThreadGroup& group, const Work& work);

 private:
  enum class Next { kPart, kWait, kEnd };
  Next Take(const ThreadGroup& group, int64_t* part, int64_t* bytes);
  void GiveBack(int64_t bytes);

  const ModelSource& source_;
  const std::vector<int64_t> order_;
  WorkStealing shared_;
  std::mutex mutex_;  // guards what follows
  size_t next_ = 0;
  int64_t in_hand_ = 0;  // parts
  int64_t in_use_ = 0;   // bytes
};

// Of bytes of a mapped file that are in the system's memory already: one call in place of a fault
// for every few pages. Of other bytes nothing.
void MapAtOnce(ModelSource::Bytes bytes);

// Calls `use` with pieces of the bytes, some MiB each, letting go of each that lies in a mapped
// file. Returns early when the group stops.
void InPieces(const ModelSource& source, ModelSource::Bytes bytes, const ThreadGroup& group,
              const std::function<void(ModelSource::Bytes piece, size_t offset)>& use);

}  // namespace tandem::convert
