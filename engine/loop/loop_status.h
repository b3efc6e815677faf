#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "engine/engine.h"

namespace tandem::engine {

// What other threads may know of the loop.
class LoopStatus {
 public:
  // Counts requests that go into the inbox together. False when the queue was full before them.
  bool TryEnqueue(int64_t n_requests, int64_t max_queue, int64_t max_seqs);
  // How many more requests there is room for.
  int64_t Room(int64_t max_queue, int64_t max_seqs) const;

  // By the engine thread, once per step: figures as of now; `n_taken` requests left the inbox.
  void Publish(const EngineStats& stats, const EngineHistograms& histograms,
               int64_t queued_requests, int64_t n_taken);
  void Beat();

  EngineStats Stats() const;
  EngineHistograms Histograms() const;

 private:
  int64_t RoomLocked(int64_t max_queue, int64_t max_seqs) const;  // REQUIRES: mutex_ held

  mutable std::mutex mutex_;  // guards the next four
  EngineStats stats_;
  EngineHistograms histograms_;
  int64_t in_inbox_ = 0;
  int64_t queued_requests_ = 0;  // taken from the inbox, without a place yet
  std::atomic<int64_t> heartbeat_ns_{0};
};

}  // namespace tandem::engine
