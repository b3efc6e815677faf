#include "engine/loop/loop_status.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tandem::engine {

int64_t LoopStatus::RoomLocked(int64_t max_queue, int64_t max_seqs) const {
  return std::max<int64_t>(0, max_queue + FreePlaces(max_seqs) - in_inbox_ - queued_requests_);
}

// Further choices of admitted requests take the next places first. Batch sequences give way.
int64_t LoopStatus::FreePlaces(int64_t max_seqs) const {
  const int64_t spoken_for = std::max<int64_t>(0, stats_.requests_waiting - queued_requests_);
  return std::max<int64_t>(
      0, max_seqs - (stats_.requests_running - stats_.batch_running) - spoken_for);
}

int64_t LoopStatus::RoomOfLocked(uint64_t client, int64_t max_waiting, int64_t max_seqs) const {
  const auto waiting = waiting_of_.find(client);
  const int64_t n_waiting = waiting == waiting_of_.end() ? 0 : waiting->second;
  return std::max<int64_t>(0, max_waiting + FreePlaces(max_seqs) - n_waiting);
}

int64_t LoopStatus::Room(int64_t max_queue, int64_t max_seqs) const {
  const std::lock_guard lock(mutex_);
  return RoomLocked(max_queue, max_seqs);
}

int64_t LoopStatus::RoomOf(uint64_t client, int64_t max_waiting, int64_t max_seqs) const {
  const std::lock_guard lock(mutex_);
  return RoomOfLocked(client, max_waiting, max_seqs);
}

LoopStatus::Entry LoopStatus::TryEnqueue(uint64_t client, int64_t n_requests, int64_t max_queue,
                                         int64_t max_waiting_of_client, int64_t max_seqs) {
  const std::lock_guard lock(mutex_);
  if (max_waiting_of_client > 0 && RoomOfLocked(client, max_waiting_of_client, max_seqs) == 0) {
    return Entry::kClientFull;
  }
  if (RoomLocked(max_queue, max_seqs) == 0) return Entry::kQueueFull;
  waiting_of_[client] += n_requests;  // first, because it may throw
  in_inbox_ += n_requests;
  return Entry::kTaken;
}

void LoopStatus::SetFailed(const std::string& message) {
  const std::lock_guard lock(mutex_);
  failure_ = message;
}

std::string LoopStatus::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void LoopStatus::Withdraw(uint64_t client, int64_t n_requests) {
  const std::lock_guard lock(mutex_);
  in_inbox_ -= n_requests;
  const auto waiting = waiting_of_.find(client);
  TANDEM_CHECK(waiting != waiting_of_.end() && waiting->second >= n_requests);
  waiting->second -= n_requests;
  if (waiting->second == 0) waiting_of_.erase(waiting);
}

void LoopStatus::Publish(const EngineStats& stats, const EngineHistograms& histograms,
                         int64_t queued_requests, int64_t n_taken,
                         std::span<const uint64_t> left_queue) {
  const std::lock_guard lock(mutex_);
  stats_ = stats;
  histograms_ = histograms;
  queued_requests_ = queued_requests;
  in_inbox_ -= n_taken;
  for (const uint64_t client : left_queue) {
    const auto waiting = waiting_of_.find(client);
    TANDEM_CHECK(waiting != waiting_of_.end());
    if (--waiting->second == 0) waiting_of_.erase(waiting);
  }
}

void LoopStatus::Beat() {
  heartbeat_ns_.store(std::chrono::steady_clock::now().time_since_epoch() /
                      std::chrono::nanoseconds(1));
}

EngineStats LoopStatus::Stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.requests_waiting += in_inbox_;
  stats.requests_queued = queued_requests_ + in_inbox_;
  stats.heartbeat =
      std::chrono::steady_clock::time_point(std::chrono::nanoseconds(heartbeat_ns_.load()));
  return stats;
}

EngineHistograms LoopStatus::Histograms() const {
  const std::lock_guard lock(mutex_);
  return histograms_;
}

}  // namespace tandem::engine
