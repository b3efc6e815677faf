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

// What other threads may know of the loop.
class LoopStatus {
 public:
  enum class Entry { kTaken, kQueueFull, kClientFull };
  // Counts requests of one client that go into the inbox together, unless the queue was full before
  // them, or what the client may have waiting (0: as much as there is room for).
  Entry TryEnqueue(uint64_t client, int64_t n_requests, int64_t max_queue,
                   int64_t max_waiting_of_client, int64_t max_seqs);
  // Takes back what TryEnqueue has counted: the requests never reached the inbox.
  void Withdraw(uint64_t client, int64_t n_requests);
  // How many more requests there is room for.
  int64_t Room(int64_t max_queue, int64_t max_seqs) const;
  // The same for one client that may keep `max_waiting` of them.
  int64_t RoomOf(uint64_t client, int64_t max_waiting, int64_t max_seqs) const;

  // By the engine thread, once per step: figures as of now; `n_taken` requests left the inbox, and
  // those of the clients in `left_queue`, one entry each, wait no more.
  void Publish(const EngineStats& stats, const EngineHistograms& histograms,
               int64_t queued_requests, int64_t n_taken, std::span<const uint64_t> left_queue);
  void Beat();
  // The model can serve no more: Later requests get `message`.
  void SetFailed(const std::string& message);
  // Empty while the model can serve.
  std::string failure() const;

  EngineStats Stats() const;
  EngineHistograms Histograms() const;

 private:
  // REQUIRES, as the next two: mutex_ held.
  int64_t RoomLocked(int64_t max_queue, int64_t max_seqs) const;
  int64_t RoomOfLocked(uint64_t client, int64_t max_waiting, int64_t max_seqs) const;
  int64_t FreePlaces(int64_t max_seqs) const;

  mutable std::mutex mutex_;  // guards the next six
  std::string failure_;
  EngineStats stats_;
  EngineHistograms histograms_;
  int64_t in_inbox_ = 0;
  int64_t queued_requests_ = 0;  // taken from the inbox, without a place yet
  // Both together, of each client that has any.
  std::unordered_map<uint64_t, int64_t> waiting_of_;
  std::atomic<int64_t> heartbeat_ns_{0};
};

}  // namespace tandem::engine
