// Guesses through the scheduler: which rows a step computes, and what Append confirms.

#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

#include "engine/sched/scheduler.h"

namespace tandem::engine {
namespace {

SchedulerOptions DraftOptions() {
  SchedulerOptions options;
  options.max_seqs = 8;
  options.prefill_chunk_tokens = 64;
  options.max_model_len = 256;
  options.draft_rows = 8;
  return options;
}

class DraftWorld {
 public:
  explicit DraftWorld(const SchedulerOptions& options = DraftOptions(), int64_t blocks = 64)
      : pool(blocks), index(Sha256Digest{}, options.windows), scheduler(options, pool, index) {}

  // A sequence whose prompt is computed and whose first token is 100.
  Sequence& Decoding(uint64_t id, int64_t prompt_len = 20) {
    std::vector<TokenId> prompt(static_cast<size_t>(prompt_len));
    std::iota(prompt.begin(), prompt.end(), static_cast<TokenId>(1000 * id));
    scheduler.Add({.id = RequestId{id}, .prompt = std::move(prompt)});
    const BatchPlan& plan = scheduler.Plan();
    EXPECT_EQ(plan.slices.back().sequence->request, RequestId{id});
    scheduler.Commit();
    for (const PlannedSlice& slice : plan.slices) scheduler.Append(*slice.sequence, 100);
    return *scheduler.Choices(RequestId{id})[0];
  }

  BlockPool pool;
  PrefixIndex index;
  Scheduler scheduler;
};

TEST(Drafts, AStepComputesTheGuessAndAppendConfirmsItsBeginning) {
  DraftWorld world;
  Sequence& sequence = world.Decoding(1);
  EXPECT_EQ(world.scheduler.DraftRoom(sequence), 7);
  world.scheduler.Propose(sequence, {5, 6, 7});

  const BatchPlan& plan = world.scheduler.Plan();

  ASSERT_EQ(plan.slices.size(), 1u);
  EXPECT_EQ(plan.rows, 4);
  EXPECT_EQ(plan.slices[0].n_tokens, 4);
  EXPECT_EQ(plan.slices[0].n_draft, 3);
  EXPECT_TRUE(plan.slices[0].samples);
  EXPECT_TRUE(plan.slices[0].decodes());
  world.scheduler.Commit();
  EXPECT_EQ(sequence.computed_len, 21);
  world.scheduler.Append(sequence, 5);
  EXPECT_EQ(sequence.uncomputed(), 0);
  world.scheduler.Append(sequence, 9);  // not 6
  EXPECT_EQ(sequence.uncomputed(), 1);
  EXPECT_EQ(sequence.computed_len, 22);
  EXPECT_EQ(world.scheduler.counters().draft_tokens, 3);
  EXPECT_EQ(world.scheduler.counters().accepted_tokens, 1);
  world.scheduler.CheckInvariants();

  // The next step begins at the first token that is not computed.
  const BatchPlan& next = world.scheduler.Plan();
  EXPECT_EQ(next.slices[0].first_position, 22);
  EXPECT_EQ(next.slices[0].n_tokens, 1);
}

TEST(Drafts, AWholeGuessIsFollowedByOneMoreToken) {
  DraftWorld world;
  Sequence& sequence = world.Decoding(1, 30);  // confirmed tokens fill a block
  world.scheduler.Propose(sequence, {5, 6});
  world.scheduler.Plan();
  world.scheduler.Commit();
  world.scheduler.Append(sequence, 5);
  world.scheduler.Append(sequence, 6);
  EXPECT_EQ(sequence.uncomputed(), 0);
  world.scheduler.Append(sequence, 7);
  EXPECT_EQ(sequence.uncomputed(), 1);
  EXPECT_EQ(sequence.computed_len, 33);
  world.scheduler.CheckInvariants();
}

TEST(Drafts, RunningSequencesShareTheRows) {
  DraftWorld world;
  Sequence& first = world.Decoding(1);
  Sequence& second = world.Decoding(2);
  EXPECT_EQ(world.scheduler.DraftRoom(first), 3);
  world.scheduler.Propose(first, {1, 2, 3, 4, 5, 6});
  world.scheduler.Propose(second, {1});
  const BatchPlan& plan = world.scheduler.Plan();
  EXPECT_EQ(plan.slices[0].n_draft, 3);
  EXPECT_EQ(plan.slices[1].n_draft, 1);
  EXPECT_LE(plan.rows, 8);
}

TEST(Drafts, PromptsAndFullBatchesLeaveNoRows) {
  DraftWorld world;
  Sequence& sequence = world.Decoding(1);
  world.scheduler.Propose(sequence, {5, 6, 7});
  world.scheduler.Add({.id = RequestId{2}, .prompt = std::vector<TokenId>(100, 3)});
  const BatchPlan& plan = world.scheduler.Plan();
  for (const PlannedSlice& slice : plan.slices) EXPECT_EQ(slice.n_draft, 0);

  DraftWorld full;
  Sequence* last = nullptr;
  for (uint64_t id = 1; id <= 5; ++id) last = &full.Decoding(id);
  EXPECT_EQ(full.scheduler.DraftRoom(*last), 0);
}

TEST(Drafts, AGuessTakesFreeBlocksOnlyAndEndsAtTheModelsLength) {
  SchedulerOptions options = DraftOptions();
  options.max_model_len = 32;
  DraftWorld world(options, 2);
  Sequence& sequence = world.Decoding(1, 14);  // one block; one free block, kept for itself
  world.scheduler.Propose(sequence, {1, 2, 3, 4, 5});
  EXPECT_EQ(world.scheduler.Plan().slices[0].n_draft, 1);  // the rest of its block

  DraftWorld end(options, 2);
  Sequence& near_end = end.Decoding(1, 29);
  EXPECT_EQ(end.scheduler.DraftRoom(near_end), 1);
}

TEST(Drafts, WithoutDraftRowsThereIsNoRoom) {
  SchedulerOptions options = DraftOptions();
  options.draft_rows = 0;
  DraftWorld world(options);
  EXPECT_EQ(world.scheduler.DraftRoom(world.Decoding(1)), 0);
}

}  // namespace
}  // namespace tandem::engine
