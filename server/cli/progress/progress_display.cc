#include "server/cli/progress/progress_display.h"

#include <utility>

#include "engine/base/attempt.h"

namespace tandem::server {
namespace {

using namespace std::chrono_literals;

// Shorter work would only flicker.
constexpr auto kBarDelay = 300ms;
constexpr auto kTimeBetweenLines = 10s;
constexpr auto kJsonInterval = 1s;

constexpr std::string_view kRemoveBar = "\r\x1b[K";

}  // namespace

ProgressDisplay::ProgressDisplay(Options options) : options_(std::move(options)) {}

ProgressDisplay::~ProgressDisplay() { RemoveBar(); }

void ProgressDisplay::Show(const ProgressState& state) noexcept {
  // The terminal may be stopped. Work goes on without a bar then, but no end is missed.
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    if (!state.is_finished) return;
    lock.lock();
  }
  // Progress is not worth a failure: without memory the display misses one state.
  (void)Attempt([&] {
    const Time now = options_.now();
    Task& task = Update(state, now);
    switch (options_.style) {
      case ProgressStyle::kBar:
        break;
      case ProgressStyle::kLines:
        if (state.task == tasks_.rbegin()->first) ShowLine(task, state.is_finished, now);
        break;
      case ProgressStyle::kJson:
        ShowJson(task, state.is_finished, now);
        break;
    }
    if (state.is_finished) tasks_.erase(state.task);
    if (options_.style == ProgressStyle::kBar) ShowBar(now);
  });
}

ProgressDisplay::Task& ProgressDisplay::Update(const ProgressState& state, Time now) {
  const auto [at, is_new] = tasks_.try_emplace(state.task);
  Task& task = at->second;
  if (is_new) {
    task.figures.task = state.task;
    task.figures.phase = std::string(state.phase);
    task.figures.unit = std::string(state.unit);
    task.begin = now;
    task.next_line = options_.style == ProgressStyle::kJson ? now : now + kTimeBetweenLines;
  }
  task.rate.Add(now, state.done);
  task.figures.done = state.done;
  task.figures.total = state.total;
  task.figures.per_second = task.rate.per_second();
  task.figures.seconds_left = state.total > 0 ? task.rate.SecondsLeft(state.total) : 0;
  task.figures.seconds = std::chrono::duration<double>(now - task.begin).count();
  return task;
}

void ProgressDisplay::ShowBar(Time now) {
  const Task* newest = nullptr;
  for (const auto& [id, task] : tasks_) {
    if (now - task.begin >= kBarDelay) newest = &task;
  }
  if (newest == nullptr) return RemoveBar();
  std::string bar = ProgressBar(newest->figures, options_.columns(), options_.has_colour);
  if (bar == bar_) return;
  bar_ = std::move(bar);
  options_.write(std::string(kRemoveBar) + bar_);
}

void ProgressDisplay::ShowLine(Task& task, bool is_finished, Time now) {
  if (is_finished) {
    const bool is_done = task.figures.total <= 0 || task.figures.done >= task.figures.total;
    if (task.has_line && is_done) options_.write(ProgressEnd(task.figures) + "\n");
    return;
  }
  if (now < task.next_line) return;
  task.next_line = now + kTimeBetweenLines;
  task.has_line = true;
  options_.write(ProgressLine(task.figures) + "\n");
}

void ProgressDisplay::ShowJson(Task& task, bool is_finished, Time now) {
  if (!is_finished && now < task.next_line) return;
  task.next_line = now + kJsonInterval;
  options_.write(ProgressJson(task.figures, is_finished) + "\n");
}

void ProgressDisplay::RemoveBar() {
  if (bar_.empty()) return;
  bar_.clear();
  options_.write(kRemoveBar);
}

void ProgressDisplay::Around(const std::function<void()>& print) {
  const std::lock_guard lock(mutex_);
  const std::string bar = bar_;
  RemoveBar();
  const std::exception_ptr fault = FaultOf(print);
  if (!bar.empty()) {
    bar_ = bar;
    options_.write(std::string(kRemoveBar) + bar_);
  }
  if (fault) std::rethrow_exception(fault);
}

}  // namespace tandem::server
