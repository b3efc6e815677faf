#include "convert/work/progress.h"

#include <algorithm>
#include <cstdio>

#include "engine/base/error.h"

namespace tandem::convert {
namespace {

using namespace std::chrono_literals;

constexpr auto kRateOver = 5s;

std::string Mib(int64_t bytes) { return std::to_string(bytes >> 20); }

}  // namespace

Progress::Progress(const JobContext& context, const std::string& phase, int64_t total)
    : context_(context),
      total_(total),
      last_report_(Clock::now()),
      task_(phase, total > 0 ? "bytes" : "tensors", total) {
  recent_.emplace_back(last_report_, 0);
}

// Returns bytes per second over the last 5 s, or 0 while too little is known.
double Progress::Rate(Clock::time_point now) {
  recent_.emplace_back(now, done_);
  while (recent_.size() > 2 && now - recent_[1].first > kRateOver) recent_.pop_front();
  const double seconds = std::chrono::duration<double>(now - recent_.front().first).count();
  if (seconds < 0.1) return 0;
  return static_cast<double>(done_ - recent_.front().second) / seconds;
}

void Progress::Advance(int64_t bytes) {
  done_ += bytes;
  task_.Add(bytes);
  const auto now = Clock::now();
  const double rate = Rate(now);
  // A conversion of 0 bytes is at 100 %.
  const int64_t percent = total_ == 0 ? 100 : std::min<int64_t>(100, 100 * done_ / total_);
  const double left = rate > 0 ? static_cast<double>(total_ - done_) / rate : 0;
  if (context_.stop.stop_requested()) throw Error(ErrorCode::kCancelled, "stopped");
  if (percent == last_percent_ && now - last_report_ < 1s) return;
  char text[160];
  std::snprintf(text, sizeof text, "%s of %s MiB", Mib(done_).c_str(), Mib(total_).c_str());
  std::string what = text;
  if (rate > 0) {
    std::snprintf(text, sizeof text, ", %.0f MB/s, %.0f s left", rate / 1e6, std::max(left, 0.0));
    what += text;
  }
  Report(percent, what, rate, std::max(left, 0.0));
}

void Progress::Reach(int64_t done, int64_t total, const std::string& what) {
  if (context_.stop.stop_requested()) throw Error(ErrorCode::kCancelled, "stopped");
  // A total of one only asks for a stop between calls of long work.
  if (total > 1) {
    task_.SetTotal(total);
    task_.Reach(done);
  }
  const int64_t percent = total == 0 ? 100 : 100 * done / total;
  if (percent != last_percent_) Report(percent, what, 0, 0);
}

void Progress::Report(int64_t percent, const std::string& what, double bytes_per_s,
                      double seconds_left) {
  last_percent_ = percent;
  last_report_ = Clock::now();
  if (!context_.report) return;
  context_.report({.kind = "message",
                   .step = percent,
                   .total_steps = 100,
                   .message = what,
                   .bytes_per_s = bytes_per_s,
                   .seconds_left = seconds_left});
  // A report may make the job request a stop.
  if (context_.stop.stop_requested()) throw Error(ErrorCode::kCancelled, "stopped");
}

}  // namespace tandem::convert
