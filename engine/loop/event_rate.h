#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace tandem::engine {

// The rate of an event per second, over about the last ten seconds. Times must not decrease.
class EventRate {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  void Add(TimePoint now) {
    Forget(now);
    if (first_second_ < 0) first_second_ = Second(now);
    ++counts_[Slot(Second(now))];
  }
  double PerSecond(TimePoint now) {
    Forget(now);
    int64_t total = 0;
    for (const int64_t count : counts_) total += count;
    if (total == 0) {
      first_second_ = -1;  // a pause must not dilute the next rate
      return 0;
    }
    const int64_t seconds = Second(now) - first_second_ + 1;
    return static_cast<double>(total) /
           static_cast<double>(seconds < kSeconds ? seconds : kSeconds);
  }

 private:
  static constexpr int64_t kSeconds = 10;

  static int64_t Second(TimePoint time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
  }
  static size_t Slot(int64_t second) { return static_cast<size_t>(second % kSeconds); }

  void Forget(TimePoint now) {
    const int64_t second = Second(now);
    if (second - latest_second_ >= kSeconds) {
      counts_.fill(0);
    } else {
      for (int64_t s = latest_second_ + 1; s <= second; ++s) counts_[Slot(s)] = 0;
    }
    if (second > latest_second_) latest_second_ = second;
  }

  std::array<int64_t, kSeconds> counts_{};  // by second modulo kSeconds
  int64_t latest_second_ = 0;
  int64_t first_second_ = -1;  // of the counted events; -1: none
};

}  // namespace tandem::engine
