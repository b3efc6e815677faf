#include "server/cli/progress/progress_rate.h"

#include <algorithm>

namespace tandem::server {
namespace {

using namespace std::chrono_literals;

// Long enough to average over slow steps and bursts, short enough to follow a change.
constexpr auto kRateWindow = 15s;
constexpr auto kLeastSpan = 200ms;

}  // namespace

void ProgressRate::Add(Time now, int64_t done) {
  if (!recent_.empty() && done < recent_.back().second) {
    recent_.clear();
    per_second_ = 0;
  }
  // Several readings of the same amount say nothing about when it changed: keep the first.
  if (recent_.empty() || done > recent_.back().second) recent_.emplace_back(now, done);
  while (recent_.size() > 2 && now - recent_[1].first > kRateWindow) recent_.pop_front();
  const auto span = now - recent_.front().first;
  const int64_t units = recent_.back().second - recent_.front().second;
  if (span < kLeastSpan || units == 0) return;
  per_second_ = static_cast<double>(units) / std::chrono::duration<double>(span).count();
}

double ProgressRate::SecondsLeft(int64_t total) const {
  if (per_second_ <= 0 || recent_.empty()) return 0;
  return static_cast<double>(std::max<int64_t>(0, total - recent_.back().second)) / per_second_;
}

}  // namespace tandem::server
