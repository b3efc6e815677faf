#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tandem {

// How far a piece of long work is, for display.
struct ProgressState {
  uint64_t task = 0;         // different for every ProgressTask of this process
  std::string_view phase;    // "packing weights of NAME"; may hold any bytes of a file name
  std::string_view unit;     // "bytes", or a plural such as "steps"
  int64_t done = 0;          // in units
  int64_t total = 0;         // 0: unknown
  bool is_finished = false;  // the last state of this task
};

// Shows progress: a bar, lines, or nothing. Both calls may come from any thread, and several tasks
// may run at once.
class ProgressSink {
 public:
  virtual ~ProgressSink() = default;
  // Must not throw and should return soon: the work waits for it. At most ten calls per second and
  // task, besides the first and the last one.
  virtual void Show(const ProgressState& state) noexcept = 0;
};

// Replaces the sink of this process; null (the default) shows nothing. Tasks use the sink that they
// found when they began. Like the log, progress belongs to the process: it has one terminal.
void SetProgressSink(std::shared_ptr<ProgressSink> sink);

// A piece of long work, from its construction to its destruction. Any thread may advance it. A call
// costs a few nanoseconds without a sink, and one reading of the clock with it.
class ProgressTask {
 public:
  // `total` and `done` are in units; a total of 0 is unknown. Work that resumes begins at `done`,
  // which does not count for its rate.
  ProgressTask(std::string phase, std::string unit, int64_t total, int64_t done = 0);
  ~ProgressTask();
  ProgressTask(const ProgressTask&) = delete;
  ProgressTask& operator=(const ProgressTask&) = delete;

  void Add(int64_t units);
  void Reach(int64_t done);
  void SetTotal(int64_t total);

 private:
  using Clock = std::chrono::steady_clock;

  void ShowIfDue();
  void Show(bool is_finished) noexcept;

  const std::shared_ptr<ProgressSink> sink_;
  const std::string phase_;
  const std::string unit_;
  const uint64_t id_;
  std::atomic<int64_t> done_;
  std::atomic<int64_t> total_;
  std::atomic<Clock::rep> next_show_;
};

}  // namespace tandem
