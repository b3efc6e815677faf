#include "engine/sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

std::vector<TokenId> Prompt(int64_t length, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<size_t>(length));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A scheduler whose steps "compute" at once and sample token 7 for every due sequence.
class World {
 public:
  World(const SchedulerOptions& options, int64_t blocks)
      : pool(blocks), index(Sha256Digest{}), scheduler(options, pool, index) {}

  void Add(uint64_t id, std::vector<TokenId> prompt, int n = 1, int priority = 0) {
    scheduler.Add({.id = RequestId{id}, .prompt = std::move(prompt), .n = n, .priority = priority});
  }
  Sequence& Choice(uint64_t id, int choice = 0) {
    return *scheduler.Choices(RequestId{id})[static_cast<size_t>(choice)];
  }
  BatchPlan Step() {
    BatchPlan plan = scheduler.Plan();
    scheduler.Commit();
    for (const PlannedSlice& slice : plan.slices) {
      if (!slice.samples) continue;
      if (!slice.forks) {
        scheduler.Append(*slice.sequence, 7);
        continue;
      }
      for (const auto& choice : scheduler.Choices(slice.sequence->request)) {
        scheduler.Append(*choice, 7);
      }
    }
    scheduler.CheckInvariants();
    return plan;
  }
  // Rows that a request gets in a plan.
  static int64_t Rows(const BatchPlan& plan, uint64_t id) {
    int64_t rows = 0;
    for (const PlannedSlice& slice : plan.slices) {
      if (slice.sequence->request == RequestId{id}) rows += slice.n_tokens;
    }
    return rows;
  }

  BlockPool pool;
  PrefixIndex index;
  Scheduler scheduler;
};

SchedulerOptions Options(int64_t max_seqs = 8, int64_t chunk = 32, int64_t max_len = 256) {
  SchedulerOptions options;
  options.max_seqs = max_seqs;
  options.prefill_chunk_tokens = chunk;
  options.max_model_len = max_len;
  return options;
}

std::vector<BlockId> Cached(const PrefixIndex& index, const std::vector<TokenId>& tokens,
                            const std::string& variant) {
  return index.Blocks(index.Keys(tokens, variant))[0];
}

TEST(Scheduler, RefusesAPoolTooSmallForOneSequence) {
  EXPECT_THROW(World(Options(8, 32, 256), 15), Error);
  EXPECT_NO_THROW(World(Options(8, 32, 256), 16));
}

TEST(Scheduler, SequencesOfDifferentAdaptersShareNoPrefix) {
  World world(Options(8, 256), 64);
  const auto add = [&](uint64_t id, const std::string& adapter) {
    world.scheduler.Add({.id = RequestId{id}, .prompt = Prompt(65), .adapter = adapter});
  };
  add(1, "");
  add(2, "one");
  add(3, "one");
  add(4, "two");

  // Only the second request of adapter one waits: for the first.
  const BatchPlan together = world.Step();
  EXPECT_EQ(World::Rows(together, 1), 65);
  EXPECT_EQ(World::Rows(together, 2), 65);
  EXPECT_EQ(World::Rows(together, 3), 0);
  EXPECT_EQ(World::Rows(together, 4), 65);
  EXPECT_EQ(World::Rows(world.Step(), 3), 1);

  for (uint64_t id = 1; id <= 4; ++id) world.scheduler.Cancel(RequestId{id});
  add(5, "two");
  add(6, "three");
  const BatchPlan later = world.Step();
  EXPECT_EQ(World::Rows(later, 5), 1);
  EXPECT_EQ(World::Rows(later, 6), 65);
}

TEST(Scheduler, ATenantFindsAndFollowsItsOwnPrefixesOnly) {
  World world(Options(8, 256), 64);
  const auto add = [&](uint64_t id, uint64_t tenant) {
    world.scheduler.Add({.id = RequestId{id}, .prompt = Prompt(65), .tenant = tenant});
  };
  add(1, 7);
  add(2, 8);
  add(3, 7);  // follows the first
  const BatchPlan plan = world.Step();
  EXPECT_EQ(World::Rows(plan, 1), 65);
  EXPECT_EQ(World::Rows(plan, 2), 65);
  EXPECT_EQ(World::Rows(plan, 3), 0);

  add(4, 7);
  add(5, 8);
  add(6, 9);
  add(7, 0);
  world.Step();
  EXPECT_EQ(world.Choice(4).cached_len, 64);
  EXPECT_EQ(world.Choice(5).cached_len, 64);
  EXPECT_EQ(world.Choice(6).cached_len, 0);
  EXPECT_EQ(world.Choice(7).cached_len, 0);
}

TEST(Scheduler, DecodesSharetheStepWithPromptChunks) {
  World world(Options(), 64);
  world.Add(1, Prompt(10));
  world.Step();
  world.Add(2, Prompt(100, 500));

  const BatchPlan plan = world.Step();

  ASSERT_EQ(plan.slices.size(), 2u);
  EXPECT_EQ(plan.slices[0].sequence->request, RequestId{1});
  EXPECT_EQ(plan.slices[0].n_tokens, 1);
  EXPECT_EQ(plan.slices[1].n_tokens, 32);
  EXPECT_FALSE(plan.slices[1].samples);
}

TEST(Scheduler, ShortPromptIsAnsweredWhileALongOneIsComputed) {
  World world(Options(), 64);
  world.Add(1, Prompt(200));
  world.Step();
  world.Add(2, Prompt(8, 500));

  const BatchPlan plan = world.Step();

  EXPECT_EQ(World::Rows(plan, 2), 8);
  EXPECT_EQ(World::Rows(plan, 1), 24);
}

TEST(Scheduler, CachedPrefixIsNotComputedAgain) {
  World world(Options(), 64);
  world.Add(1, Prompt(33));
  world.Step();
  world.Step();
  world.Add(2, Prompt(33));

  const BatchPlan plan = world.Step();

  EXPECT_EQ(World::Rows(plan, 2), 1);
  EXPECT_EQ(world.Choice(2).cached_len, 32);
}

TEST(Scheduler, ForgottenPrefixesAreComputedAgain) {
  World world(Options(8, 256), 64);
  world.Add(1, Prompt(65));
  world.Step();
  world.scheduler.Cancel(RequestId{1});
  EXPECT_GT(world.index.size(), 0);

  world.scheduler.ForgetPrefixes();
  world.scheduler.CheckInvariants();
  EXPECT_EQ(world.index.size(), 0);
  world.Add(2, Prompt(65));
  EXPECT_EQ(World::Rows(world.Step(), 2), 65);
}

TEST(Scheduler, WholePromptInCacheStillComputesOneToken) {
  World world(Options(), 64);
  world.Add(1, Prompt(32));
  world.Step();
  world.Add(2, Prompt(32));

  const BatchPlan plan = world.Step();

  EXPECT_EQ(World::Rows(plan, 2), 16);
  EXPECT_EQ(world.Choice(2).cached_len, 16);
}

TEST(Scheduler, ScoredPromptSkipsTheCache) {
  World world(Options(), 64);
  world.Add(1, Prompt(33));
  world.Step();
  world.Step();
  world.scheduler.Add({.id = RequestId{2}, .prompt = Prompt(33), .scores_prompt = true});

  const BatchPlan plan = world.Step();

  EXPECT_GT(World::Rows(plan, 2), 1);
  EXPECT_EQ(world.Choice(2).cached_len, 0);
}

TEST(Scheduler, RequestsThatArriveTogetherComputeTheirSharedPrefixOnce) {
  World world(Options(), 64);
  for (uint64_t id = 1; id <= 4; ++id) {
    std::vector<TokenId> prompt = Prompt(100);
    prompt.back() = static_cast<TokenId>(1000 + id);
    world.Add(id, std::move(prompt));
  }

  int64_t rows = 0;
  while (world.Choice(4).length() == 100) rows += world.Step().rows;

  EXPECT_EQ(world.Choice(4).cached_len, 96);
  EXPECT_LT(rows, 100 + 3 * 4 + 3 * 4 + 1);
}

TEST(Scheduler, FollowerGoesOnAloneWhenItsLeaderIsCancelled) {
  World world(Options(), 64);
  world.Add(1, Prompt(100));
  world.Add(2, Prompt(100));
  world.Step();

  world.scheduler.Cancel(RequestId{1});
  world.scheduler.CheckInvariants();
  const BatchPlan plan = world.Step();

  EXPECT_EQ(World::Rows(plan, 2), 32);
  EXPECT_EQ(world.Choice(2).cached_len, 32);
}

// How a leader leaves before it has computed the blocks that its follower waits for.
enum class Departure { kCancelled, kPaused };
// The base model's cached blocks of the same text, and how the leader leaves.
using LeaderLeaves = std::tuple<int64_t, Departure>;
class SchedulerLeaderLeaves : public testing::TestWithParam<LeaderLeaves> {};

TEST_P(SchedulerLeaderLeaves, AFollowerTakesBlocksOfItsOwnAdapterAlone) {
  const auto [base_blocks, departure] = GetParam();
  World world(Options(), 64);
  world.Add(1, Prompt(base_blocks * kTokensPerBlock + 1));
  while (world.Choice(1).uncomputed() > 1) world.Step();
  const std::vector<BlockId> of_the_base = Cached(world.index, Prompt(100), "");
  ASSERT_EQ(of_the_base.size(), static_cast<size_t>(base_blocks));
  for (const uint64_t id : {2, 3}) {
    world.scheduler.Add({.id = RequestId{id}, .prompt = Prompt(100), .adapter = "one"});
  }
  world.Step();
  ASSERT_EQ(world.Choice(3).leader, &world.Choice(2));
  const std::vector<BlockId> of_the_adapter = Cached(world.index, Prompt(100), "one");
  ASSERT_EQ(of_the_adapter.size(), 2u) << "one chunk";

  if (departure == Departure::kCancelled) {
    world.scheduler.Cancel(RequestId{2});
  } else {
    world.scheduler.SetPaused(RequestId{2}, true);
  }
  world.scheduler.CheckInvariants();

  EXPECT_EQ(world.Choice(3).leader, nullptr);
  EXPECT_EQ(world.Choice(3).blocks(), of_the_adapter);
  EXPECT_EQ(world.Choice(3).computed_len, 32);
}

INSTANTIATE_TEST_SUITE_P(All, SchedulerLeaderLeaves,
                         testing::Combine(testing::Values(1, 4),
                                          testing::Values(Departure::kCancelled,
                                                          Departure::kPaused)));

TEST(Scheduler, AFollowerOfAPreemptedLeaderTakesBlocksOfItsOwnAdapterAlone) {
  // Twelve choices of the base need a block each in the same step, and one block is missing. The
  // leader, the last holder of blocks, gives up its own.
  World world(Options(16, 4, 112), 29);
  world.Add(1, Prompt(36), 12);
  while (world.scheduler.num_running() < 12) world.Step();
  const std::vector<BlockId> of_the_base = Cached(world.index, Prompt(97), "");
  ASSERT_EQ(of_the_base.size(), 2u);
  for (const uint64_t id : {2, 3}) {
    world.scheduler.Add({.id = RequestId{id}, .prompt = Prompt(97), .adapter = "one"});
  }
  world.Step();
  ASSERT_EQ(world.Choice(3).leader, &world.Choice(2));

  std::vector<Sequence*> preempted;
  while (preempted.empty()) preempted = world.Step().preempted;

  ASSERT_EQ(preempted, std::vector<Sequence*>{&world.Choice(2)});
  const std::vector<BlockId> of_the_adapter = Cached(world.index, Prompt(97), "one");
  ASSERT_EQ(of_the_adapter.size(), 3u);
  const std::vector<BlockId>& taken = world.Choice(3).blocks();
  ASSERT_GE(taken.size(), of_the_adapter.size());
  EXPECT_TRUE(std::equal(of_the_adapter.begin(), of_the_adapter.end(), taken.begin()));
}

TEST(Scheduler, ForkedChoicesShareFullBlocksAndCopyThePartialOne) {
  World world(Options(), 64);
  world.Add(1, Prompt(20), 3);
  world.Step();

  const BatchPlan plan = world.Step();

  EXPECT_EQ(plan.slices.size(), 3u);
  EXPECT_EQ(plan.copies.size(), 2u);  // the last one keeps the original
  EXPECT_EQ(world.Choice(1, 0).blocks()[0], world.Choice(1, 2).blocks()[0]);
  EXPECT_NE(world.Choice(1, 0).blocks()[1], world.Choice(1, 1).blocks()[1]);
  EXPECT_EQ(world.pool.references(world.Choice(1, 0).blocks()[0]), 3);
}

TEST(Scheduler, MoreChoicesThanPlacesTakeTurns) {
  World world(Options(2), 64);
  world.Add(1, Prompt(5), 5);
  world.Step();

  EXPECT_EQ(world.Step().slices.size(), 2u);
  world.scheduler.Finish(world.Choice(1, 0));
  world.scheduler.Finish(world.Choice(1, 1));

  EXPECT_EQ(world.Step().slices[0].sequence->choice, 2);
}

TEST(Scheduler, YoungestLosesItsBlocksAndTheOldestGoesOn) {
  World world(Options(8, 64, 64), 5);
  world.Add(1, Prompt(30));
  world.Add(2, Prompt(30, 500));
  world.Step();

  std::vector<Sequence*> preempted;
  while (preempted.empty()) preempted = world.Step().preempted;

  ASSERT_EQ(preempted.size(), 1u);
  EXPECT_EQ(preempted[0]->request, RequestId{2});
  EXPECT_GT(world.Choice(2).length(), 31);  // its tokens are kept
  EXPECT_EQ(world.Choice(2).computed_len, 0);
}

TEST(Scheduler, LowerPriorityValueGoesFirst) {
  World world(Options(1), 64);
  world.Add(1, Prompt(5), 1, 5);
  world.Add(2, Prompt(5, 500), 1, -5);

  EXPECT_EQ(World::Rows(world.Step(), 2), 5);
}

TEST(Scheduler, AnInteractiveRequestPrecedesEveryQueuedBatchRequest) {
  World world(Options(1), 64);
  world.Add(1, Prompt(10));
  world.Step();
  for (const uint64_t id : {2, 3}) {
    world.scheduler.Add({.id = RequestId{id},
                         .prompt = Prompt(10, 50),
                         .priority = -5,
                         .work_class = WorkClass::kBatch});
  }
  world.Add(4, Prompt(10, 100), 1, 7);
  world.scheduler.Cancel(RequestId{1});

  EXPECT_EQ(World::Rows(world.Step(), 4), 10);
  world.scheduler.Cancel(RequestId{4});
  EXPECT_EQ(World::Rows(world.Step(), 2), 10);
}

TEST(Scheduler, ARequestPausedInTheQueueKeepsItsPlaceThere) {
  World world(Options(1), 64);
  world.Add(1, Prompt(5));
  world.Add(2, Prompt(5, 500));
  world.Add(3, Prompt(5, 900));
  world.scheduler.SetPaused(RequestId{1}, true);
  world.scheduler.SetPaused(RequestId{2}, true);
  world.scheduler.CheckInvariants();
  EXPECT_EQ(world.scheduler.num_waiting(), 1);
  world.scheduler.SetPaused(RequestId{2}, false);
  world.scheduler.SetPaused(RequestId{1}, false);

  EXPECT_EQ(World::Rows(world.Step(), 1), 5);
  world.scheduler.Cancel(RequestId{1});
  EXPECT_EQ(World::Rows(world.Step(), 2), 5);
}

TEST(Scheduler, PausedRequestYieldsItsPlaceAndKeepsItsBlocks) {
  World world(Options(1), 64);
  world.Add(1, Prompt(20));
  world.Add(2, Prompt(20, 500));
  world.Step();

  world.scheduler.SetPaused(RequestId{1}, true);
  EXPECT_EQ(World::Rows(world.Step(), 2), 20);
  EXPECT_EQ(world.Choice(1).blocks().size(), 2u);
  world.scheduler.Cancel(RequestId{2});
  EXPECT_TRUE(world.scheduler.idle());
  world.scheduler.SetPaused(RequestId{1}, false);

  EXPECT_EQ(World::Rows(world.Step(), 1), 1);
}

TEST(Scheduler, NewcomerTakesThePausedOnesBlocks) {
  World world(Options(8, 64, 64), 4);
  world.Add(1, Prompt(60));
  world.Step();
  world.scheduler.SetPaused(RequestId{1}, true);
  world.Add(2, Prompt(40, 500));

  const BatchPlan plan = world.Step();

  EXPECT_EQ(World::Rows(plan, 2), 40);
  EXPECT_EQ(world.Choice(1).computed_len, 0);
}

TEST(Scheduler, CancelReleasesEverythingInEveryPhase) {
  World world(Options(2, 16), 64);
  world.Add(1, Prompt(40), 3);    // in prefill, with choices awaiting the fork
  world.Add(2, Prompt(10, 500));  // decoding soon
  world.Add(3, Prompt(10, 600));  // queued
  world.Step();

  for (uint64_t id = 1; id <= 3; ++id) EXPECT_TRUE(world.scheduler.Cancel(RequestId{id}));

  world.scheduler.CheckInvariants();
  EXPECT_TRUE(world.scheduler.idle());
  EXPECT_EQ(world.pool.num_free(), 64);
  EXPECT_EQ(world.scheduler.num_queued_requests(), 0);
}

}  // namespace
}  // namespace tandem::engine
