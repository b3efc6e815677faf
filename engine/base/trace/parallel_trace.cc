#include "engine/base/trace/parallel_trace.h"

#include <utility>

namespace tandem {
namespace {

double SecondsBetween(std::chrono::steady_clock::time_point from,
                      std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

ParallelTrace::ParallelTrace()
    : outer_(std::exchange(current_, this)), serial_from_(Clock::now()) {}

ParallelTrace::~ParallelTrace() { current_ = outer_; }

ParallelRecord ParallelTrace::Take() {
  record_.last_serial_seconds = SecondsBetween(serial_from_, Clock::now());
  serial_from_ = Clock::now();
  return std::exchange(record_, {});
}

// The trace's own work, before and after the region, counts for nothing.
void ParallelTrace::Record(int64_t n_tasks, const Task& task,
                           const std::function<void(const Task& timed)>& run) {
  const auto called = Clock::now();
  ParallelRecord::Region& region = record_.regions.emplace_back();
  region.serial_seconds = SecondsBetween(serial_from_, called);
  region.weight_bytes = std::exchange(next_weight_bytes_, 0.0);
  region.task_seconds.resize(static_cast<size_t>(n_tasks));
  double* const seconds = region.task_seconds.data();
  const auto timed = [&task, seconds](int64_t index, int worker) {
    const auto from = Clock::now();
    task(index, worker);
    seconds[index] = SecondsBetween(from, Clock::now());
  };
  current_ = nullptr;
  run(std::cref(timed));
  current_ = this;
  serial_from_ = Clock::now();
}

}  // namespace tandem
