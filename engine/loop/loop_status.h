#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>

#include "engine/api/generation.h"
#include "engine/api/loaded_model.h"
#include "engine/api/stats.h"

namespace tandem::engine {

// The loop's state that other threads may read.
class LoopStatus {
 public:
  enum class Entry { kTaken, kQueueFull, kClientFull };
  // Counts requests of one client that enter the inbox together. Refuses them when the queue was
  // already full, or when the client already has `max_waiting_of_client` waiting (0: no limit).
  Entry TryEnqueue(uint64_t client, int64_t n_requests, int64_t max_queue,
                   int64_t max_waiting_of_client, int64_t max_seqs);
  // Undoes TryEnqueue for requests that never reached the inbox.
  void Withdraw(uint64_t client, int64_t n_requests);
  // Number of further requests that the queue accepts.
  int64_t Room(int64_t max_queue, int64_t max_seqs) const;
  // Room for one client that may have `max_waiting` requests waiting.
  int64_t RoomOf(uint64_t client, int64_t max_waiting, int64_t max_seqs) const;

  // Called by the engine thread once per step. Publishes the statistics. `n_taken` requests left
  // the inbox; requests of the clients in `left_queue`, one entry each, no longer wait.
  void Publish(const EngineStats& stats, const EngineHistograms& histograms,
               int64_t queued_requests, int64_t n_taken, std::span<const uint64_t> left_queue);
  void Beat();
  // The model can no longer serve: later requests get `message`.
  void SetFailed(const std::string& message);
  // Empty while the model can serve.
  std::string failure() const;

  EngineStats Stats() const;
  EngineHistograms Histograms() const;

 private:
  // REQUIRES for this and the next two: mutex_ held.
  int64_t RoomLocked(int64_t max_queue, int64_t max_seqs) const;
  int64_t RoomOfLocked(uint64_t client, int64_t max_waiting, int64_t max_seqs) const;
  int64_t FreePlaces(int64_t max_seqs) const;

  mutable std::mutex mutex_;  // guards the next six
  std::string failure_;
  EngineStats stats_;
  EngineHistograms histograms_;
  int64_t in_inbox_ = 0;
  int64_t queued_requests_ = 0;  // taken from the inbox, still without a place
  // Requests in the inbox or queued, by client; only clients with any.
  std::unordered_map<uint64_t, int64_t> waiting_of_;
  std::atomic<int64_t> heartbeat_ns_{0};
};

}  // namespace tandem::engine
