#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

namespace tandem::server {

// Bounds the lines in flight of all running batches together. Running batches have equal shares.
// Any thread.
class BatchSlots {
 public:
  explicit BatchSlots(int64_t limit) : limit_(std::max<int64_t>(1, limit)) {}

  void Join() {
    const std::lock_guard lock(mutex_);
    ++n_batches_;
  }
  void Leave() {
    const std::lock_guard lock(mutex_);
    --n_batches_;
  }

  // Takes a slot for a batch that holds `n_held` slots. False if all slots are taken, or the batch
  // has its share.
  bool TryTake(int64_t n_held) {
    const std::lock_guard lock(mutex_);
    const int64_t n_sharing = std::max<int64_t>(1, n_batches_);
    const int64_t share = (limit_ + n_sharing - 1) / n_sharing;
    if (n_taken_ >= limit_ || n_held >= share) return false;
    ++n_taken_;
    return true;
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    --n_taken_;
  }

 private:
  const int64_t limit_;
  std::mutex mutex_;  // guards the rest
  int64_t n_batches_ = 0;
  int64_t n_taken_ = 0;
};

}  // namespace tandem::server
