#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <utility>

namespace tandem::server {

// Speed of a piece of work over its last seconds, for estimates. One thread.
class ProgressRate {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Records that `done` units were done at `now`. Work that goes back starts the measurement again.
  void Add(Time now, int64_t done);
  // Units per second; 0: too little is known.
  double per_second() const { return per_second_; }
  // Seconds until `total`; 0: unknown or done.
  double SecondsLeft(int64_t total) const;

 private:
  std::deque<std::pair<Time, int64_t>> recent_;  // oldest first
  double per_second_ = 0;
};

}  // namespace tandem::server
