// Tables of blocks with windows through the scheduler: a sequence holds what its next token sees.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/sched/scheduler.h"

namespace tandem::engine {
namespace {

constexpr int64_t kWindow = 40;
constexpr KvWindow kSliding = KvWindow::Sliding(kWindow);
constexpr KvWindow kAll = {};
constexpr KvWindow kChunks = KvWindow::Chunk(48);

SchedulerOptions WindowOptions(std::vector<KvWindow> windows, int64_t chunk = 32) {
  SchedulerOptions options;
  options.max_seqs = 8;
  options.prefill_chunk_tokens = chunk;
  options.max_model_len = 640;
  options.windows = std::move(windows);
  return options;
}

std::vector<TokenId> Counting(int64_t length, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<size_t>(length));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class WindowWorld {
 public:
  WindowWorld(const SchedulerOptions& options, int64_t blocks)
      : pool(blocks), index(Sha256Digest{}, options.windows), scheduler(options, pool, index) {}

  void Add(uint64_t id, std::vector<TokenId> prompt, int n = 1) {
    scheduler.Add({.id = RequestId{id}, .prompt = std::move(prompt), .n = n});
  }
  Sequence& Choice(uint64_t id, int choice = 0) {
    return *scheduler.Choices(RequestId{id})[static_cast<size_t>(choice)];
  }
  int64_t Step() {
    const BatchPlan plan = scheduler.Plan();
    scheduler.CheckInvariants();
    scheduler.Commit();
    for (const PlannedSlice& slice : plan.slices) {
      if (!slice.samples) continue;
      for (const auto& choice : scheduler.Choices(slice.sequence->request)) {
        if (choice->uncomputed() == 0 && choice->phase != SequencePhase::kAwaitingFork) {
          scheduler.Append(*choice, static_cast<TokenId>(9000 + choice->choice));
        }
      }
    }
    scheduler.CheckInvariants();
    return plan.rows;
  }
  void ComputePrompt(uint64_t id) {
    while (Choice(id).length() == Choice(id).prompt_len) Step();
  }
  int64_t Held(uint64_t id, size_t table) {
    const BlockTable& blocks = Choice(id).tables[table];
    return std::count_if(blocks.begin(), blocks.end(),
                         [](BlockId block) { return block != kNoBlock; });
  }

  BlockPool pool;
  PrefixIndex index;
  Scheduler scheduler;
};

TEST(SchedulerWindows, ATableWithAWindowHoldsItsWindowAndTheOthersHoldAll) {
  WindowWorld world(WindowOptions({kAll, kSliding}), 100);
  world.Add(1, Counting(400));
  world.ComputePrompt(1);

  EXPECT_EQ(world.Held(1, 0), 25);
  EXPECT_EQ(world.Held(1, 1), 3) << "position 400 sees positions from 361 on";
  for (int i = 0; i < 100; ++i) {
    world.Step();
    const int64_t at = world.Choice(1).computed_len;
    EXPECT_EQ(world.Held(1, 1), BlocksFor(at) - (at - kWindow + 1) / kTokensPerBlock);
  }
  EXPECT_EQ(world.scheduler.counters().preemptions, 0);
}

// With all positions in three tables, a second sequence of 400 tokens does not fit.
TEST(SchedulerWindows, ReleasedBlocksMakeRoomForMoreSequences) {
  const auto running = [](std::vector<KvWindow> windows) {
    WindowWorld world(WindowOptions(std::move(windows)), 160);
    for (uint64_t id = 1; id <= 6; ++id) {
      world.Add(id, Counting(400, static_cast<TokenId>(1000 * id)));
    }
    for (int i = 0; i < 120; ++i) world.Step();
    return world.scheduler.num_running();
  };

  EXPECT_EQ(running({kAll, kAll, kAll}), 1);
  EXPECT_EQ(running({kAll, kSliding, kSliding}), 4);
  EXPECT_EQ(running({kSliding, kSliding, kSliding}), 6);
}

TEST(SchedulerWindows, APoolMustHoldOneSequenceAndItsLargestStep) {
  // 640 tokens, and 39 + 32 positions that span at most 6 blocks.
  EXPECT_NO_THROW(WindowWorld(WindowOptions({kAll, kSliding}), 46));
  EXPECT_THROW(WindowWorld(WindowOptions({kAll, kSliding}), 45), Error);
  WindowWorld world(WindowOptions({kAll, kSliding}), 46);
  world.Add(1, Counting(620));
  world.ComputePrompt(1);
  for (int i = 0; i < 18; ++i) world.Step();
  EXPECT_EQ(world.scheduler.counters().preemptions, 0);
}

TEST(SchedulerWindows, APrefixThatAnotherLeftBehindIsReusedAtItsEnd) {
  WindowWorld world(WindowOptions({kAll, kSliding}), 200);
  world.Add(1, Counting(400));
  world.ComputePrompt(1);
  ASSERT_TRUE(world.scheduler.Cancel(RequestId{1}));

  world.Add(2, Counting(400));
  world.Step();
  EXPECT_EQ(world.Choice(2).cached_len, 384);
  EXPECT_EQ(world.Held(2, 1), 3) << "position 400 sees positions from 361 on";
}

TEST(SchedulerWindows, ABranchInTheMiddleIsReusedWhileItsWindowIsCached) {
  WindowWorld world(WindowOptions({kAll, kSliding}), 200);
  world.Add(1, Counting(400));
  world.ComputePrompt(1);
  std::vector<TokenId> branch = Counting(400);
  branch[200] = 7777;

  world.Add(2, branch);
  world.Step();

  EXPECT_EQ(world.Choice(2).cached_len, 192);
}

TEST(SchedulerWindows, APrefixWhoseWindowWasEvictedIsComputedAgain) {
  // The second sequence takes the blocks that the first one's window left behind.
  WindowWorld world(WindowOptions({kAll, kSliding}), 70);
  world.Add(1, Counting(400));
  world.ComputePrompt(1);
  world.Add(2, Counting(400, 5000));
  world.ComputePrompt(2);
  ASSERT_TRUE(world.scheduler.Cancel(RequestId{2}));
  std::vector<TokenId> branch = Counting(400);
  branch[200] = 7777;

  world.Add(3, branch);
  world.Step();

  EXPECT_EQ(world.Choice(3).cached_len, 0);
  world.ComputePrompt(3);
  EXPECT_EQ(world.Held(3, 1), 3);
}

TEST(SchedulerWindows, ChoicesShareTheWindowOfTheirPrompt) {
  WindowWorld world(WindowOptions({kAll, kSliding}), 100);
  world.Add(1, Counting(200), 3);
  world.ComputePrompt(1);

  EXPECT_EQ(world.pool.references(world.Choice(1, 0).tables[1][11]), 3);
  for (int i = 0; i < 60; ++i) world.Step();
  EXPECT_EQ(world.Choice(1, 2).tables[1][11], kNoBlock);
  EXPECT_EQ(world.Held(1, 1), BlocksFor(world.Choice(1).computed_len) -
                                  (world.Choice(1).computed_len - kWindow + 1) / kTokensPerBlock);
}

TEST(SchedulerWindows, AFollowerTakesTheWindowThatItsLeaderLeftBehind) {
  WindowWorld world(WindowOptions({kAll, kSliding}, 128), 200);
  std::vector<TokenId> other = Counting(300);
  other[64] = 7777;
  world.Add(1, Counting(300));
  world.Add(2, other);
  world.Step();
  ASSERT_NE(world.Choice(2).leader, nullptr);
  ASSERT_GT(world.Choice(1).computed_len, 64 + kWindow) << "its window has left the shared part";

  world.Step();

  EXPECT_EQ(world.Choice(2).cached_len, 64);
}

TEST(SchedulerWindows, ATableOfChunksHoldsTheChunkOfTheNextToken) {
  WindowWorld world(WindowOptions({kAll, kChunks}), 100);
  world.Add(1, Counting(400));
  world.ComputePrompt(1);

  EXPECT_EQ(world.Held(1, 0), 25);
  EXPECT_EQ(world.Held(1, 1), 1) << "position 400 sees positions from 384 on";
  int emptied = 0;
  for (int i = 0; i < 150; ++i) {
    world.Step();
    const int64_t at = world.Choice(1).computed_len;
    EXPECT_EQ(world.Held(1, 1), BlocksFor(at) - at / 48 * 3) << at;
    emptied += world.Held(1, 1) == 0 ? 1 : 0;
  }
  EXPECT_EQ(emptied, 3) << "where positions 432, 480 and 528 are next";
  EXPECT_EQ(world.scheduler.counters().preemptions, 0);
}

TEST(SchedulerWindows, APoolMustHoldOneChunkAndTheLargestStep) {
  // 640 tokens, and 47 + 32 positions from the beginning of a chunk.
  EXPECT_NO_THROW(WindowWorld(WindowOptions({kAll, kChunks}), 45));
  EXPECT_THROW(WindowWorld(WindowOptions({kAll, kChunks}), 44), Error);
  WindowWorld world(WindowOptions({kAll, kChunks}), 45);
  world.Add(1, Counting(620));
  world.ComputePrompt(1);
  for (int i = 0; i < 18; ++i) world.Step();
  EXPECT_EQ(world.scheduler.counters().preemptions, 0);
}

// Position 192 begins a chunk, and position 208 sees one block of it.
TEST(SchedulerWindows, ABranchIsReusedBeforeInsideAndBehindAChunksEdge) {
  for (const int64_t differs_at : {185, 192, 200, 208, 215}) {
    SCOPED_TRACE(differs_at);
    WindowWorld world(WindowOptions({kAll, kChunks}), 200);
    world.Add(1, Counting(400));
    world.ComputePrompt(1);
    std::vector<TokenId> branch = Counting(400);
    branch[static_cast<size_t>(differs_at)] = 7777;

    world.Add(2, branch);
    world.Step();

    const int64_t cached = differs_at / kTokensPerBlock * kTokensPerBlock;
    EXPECT_EQ(world.Choice(2).cached_len, cached);
    world.ComputePrompt(2);
    EXPECT_EQ(world.Held(2, 1), 1);
  }
}

// Its chunk's blocks are gone, but the chunk's first token needs none of them.
TEST(SchedulerWindows, APrefixWhoseChunkWasEvictedIsReusedUpToTheChunk) {
  WindowWorld world(WindowOptions({kAll, kChunks}), 70);
  world.Add(1, Counting(400));
  world.ComputePrompt(1);
  world.Add(2, Counting(400, 5000));
  world.ComputePrompt(2);
  ASSERT_TRUE(world.scheduler.Cancel(RequestId{2}));
  std::vector<TokenId> branch = Counting(400);
  branch[215] = 7777;

  world.Add(3, branch);
  world.Step();

  EXPECT_EQ(world.Choice(3).cached_len, 192);
}

TEST(SchedulerWindows, APreemptedSequenceOfChunksIsReusedAndEnds) {
  WindowWorld world(WindowOptions({kAll, kChunks}), 60);
  for (uint64_t id = 1; id <= 3; ++id) {
    world.Add(id, Counting(280, static_cast<TokenId>(1000 * id)));
  }
  for (int i = 0; i < 900 && world.scheduler.num_requests() > 0; ++i) {
    world.Step();
    for (uint64_t id = 1; id <= 3; ++id) {
      if (world.scheduler.Choices(RequestId{id}).empty()) continue;
      Sequence& sequence = world.Choice(id);
      if (sequence.length() == 500) world.scheduler.Finish(sequence);
    }
    world.scheduler.CheckInvariants();
  }

  EXPECT_EQ(world.scheduler.num_requests(), 0);
  EXPECT_GT(world.scheduler.counters().preemptions, 0);
  EXPECT_EQ(world.pool.num_free(), 60);
}

}  // namespace
}  // namespace tandem::engine
