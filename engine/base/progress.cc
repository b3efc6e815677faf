#include "engine/base/progress.h"

#include <mutex>
#include <utility>

namespace tandem {
namespace {

constexpr std::chrono::milliseconds kShowInterval{100};

struct CurrentSink {
  std::mutex mutex;  // guards sink
  std::shared_ptr<ProgressSink> sink;
};

CurrentSink& Current() {
  static CurrentSink current;
  return current;
}

std::shared_ptr<ProgressSink> SinkNow() {
  CurrentSink& current = Current();
  const std::lock_guard lock(current.mutex);
  return current.sink;
}

uint64_t NextTaskId() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

void SetProgressSink(std::shared_ptr<ProgressSink> sink) {
  CurrentSink& current = Current();
  {
    const std::lock_guard lock(current.mutex);
    current.sink.swap(sink);
  }
  // The old sink is destroyed here, outside the lock: its destructor may write to a terminal.
}

ProgressTask::ProgressTask(std::string phase, std::string unit, int64_t total, int64_t done)
    : sink_(SinkNow()),
      phase_(std::move(phase)),
      unit_(std::move(unit)),
      id_(NextTaskId()),
      done_(done),
      total_(total),
      next_show_((Clock::now() + kShowInterval).time_since_epoch().count()) {
  Show(false);
}

ProgressTask::~ProgressTask() { Show(true); }

void ProgressTask::Add(int64_t units) {
  done_.fetch_add(units, std::memory_order_relaxed);
  ShowIfDue();
}

void ProgressTask::Reach(int64_t done) {
  done_.store(done, std::memory_order_relaxed);
  ShowIfDue();
}

void ProgressTask::SetTotal(int64_t total) { total_.store(total, std::memory_order_relaxed); }

void ProgressTask::ShowIfDue() {
  if (!sink_) return;
  const Clock::rep now = Clock::now().time_since_epoch().count();
  Clock::rep due = next_show_.load(std::memory_order_relaxed);
  if (now < due) return;
  // One of several threads that find the state due shows it.
  const Clock::rep next = now + Clock::duration(kShowInterval).count();
  if (next_show_.compare_exchange_strong(due, next, std::memory_order_relaxed)) Show(false);
}

void ProgressTask::Show(bool is_finished) noexcept {
  if (!sink_) return;
  sink_->Show({.task = id_,
               .phase = phase_,
               .unit = unit_,
               .done = done_.load(std::memory_order_relaxed),
               .total = total_.load(std::memory_order_relaxed),
               .is_finished = is_finished});
}

}  // namespace tandem
