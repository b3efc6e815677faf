#include "engine/loop/loop_status.h"

#include <gtest/gtest.h>

#include <array>

namespace tandem::engine {
namespace {

constexpr int64_t kMaxQueue = 2;
constexpr int64_t kMaxSeqs = 1;
constexpr uint64_t kClient = 7;

EngineStats Stats(int64_t running, int64_t waiting) {
  EngineStats stats;
  stats.requests_running = running;
  stats.requests_waiting = waiting;
  return stats;
}

TEST(LoopStatusTest, AFreePlaceIsRoom) {
  LoopStatus status;
  EXPECT_EQ(status.Room(kMaxQueue, kMaxSeqs), 3);
  status.Publish(Stats(1, 0), {}, 0, 0, {});
  EXPECT_EQ(status.Room(kMaxQueue, kMaxSeqs), 2);
}

TEST(LoopStatusTest, APlaceOfABatchSequenceIsRoom) {
  LoopStatus status;
  EngineStats stats = Stats(1, 0);
  stats.batch_running = 1;
  status.Publish(stats, {}, 0, 0, {});
  EXPECT_EQ(status.Room(kMaxQueue, kMaxSeqs), 3);
}

TEST(LoopStatusTest, APlaceThatARequestsNextChoiceTakesIsNotFree) {
  LoopStatus status;
  status.Publish(Stats(0, 3), {}, 0, 0, {});
  EXPECT_EQ(status.Room(kMaxQueue, kMaxSeqs), 2);
  EXPECT_EQ(status.RoomOf(kClient, 1, kMaxSeqs), 1);
}

TEST(LoopStatusTest, AClientsBoundAndTheQueuesAreHeldTogether) {
  LoopStatus status;
  const auto enter = [&](uint64_t client, int64_t max_waiting) {
    return status.TryEnqueue(client, 1, kMaxQueue, max_waiting, kMaxSeqs);
  };
  status.Publish(Stats(1, 0), {}, 0, 0, {});
  EXPECT_EQ(enter(kClient, 1), LoopStatus::Entry::kTaken);
  EXPECT_EQ(enter(kClient, 1), LoopStatus::Entry::kClientFull);
  EXPECT_EQ(enter(kClient, 0), LoopStatus::Entry::kTaken);
  EXPECT_EQ(enter(8, 1), LoopStatus::Entry::kQueueFull);

  // Both requests have left the inbox; one now has the slot.
  status.Publish(Stats(1, 1), {}, 1, 2, std::array{kClient});
  EXPECT_EQ(enter(kClient, 1), LoopStatus::Entry::kClientFull);
  EXPECT_EQ(enter(8, 1), LoopStatus::Entry::kTaken);
}

}  // namespace
}  // namespace tandem::engine
