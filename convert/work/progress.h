#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "engine/base/job_context.h"
#include "engine/base/progress.h"

namespace tandem::convert {

// Reports progress to a job and, as a ProgressTask, to displays: to the job at every percent and
// every second, and notices a stop request. One thread.
class Progress {
 public:
  // `total` is the sum of all bytes passed to Advance. `phase` names the work on displays.
  Progress(const JobContext& context, const std::string& phase, int64_t total = 0);

  // Both throw kCancelled when the job is asked to stop.
  void Advance(int64_t bytes);
  void Reach(int64_t done, int64_t total, const std::string& what);

 private:
  using Clock = std::chrono::steady_clock;

  void Report(int64_t percent, const std::string& what, double bytes_per_s, double seconds_left);
  double Rate(Clock::time_point now);

  const JobContext& context_;
  const int64_t total_;  // bytes
  int64_t done_ = 0;
  int64_t last_percent_ = -1;
  Clock::time_point last_report_;
  ProgressTask task_;
  std::deque<std::pair<Clock::time_point, int64_t>> recent_;  // (time, bytes done by then)
};

}  // namespace tandem::convert
