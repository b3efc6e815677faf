// States of recurrent layers through the scheduler: whichever way a sequence got its state, it is
// that of its own tokens.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "engine/sched/scheduler.h"

namespace tandem::engine {
namespace {

// Steps "compute" at once. The content of a state slot is the tokens that led to it.
class StateWorld {
 public:
  StateWorld(const SchedulerOptions& options, int64_t blocks, int64_t states)
      : pool(blocks),
        index(Sha256Digest{}),
        slots(states),
        scheduler(options, pool, index, &slots) {}

  void Add(uint64_t id, std::vector<TokenId> prompt, int n = 1, int64_t shared_tokens = 0) {
    scheduler.Add(
        {.id = RequestId{id}, .prompt = std::move(prompt), .n = n, .shared_tokens = shared_tokens});
  }

  // Returns the computed rows.
  int64_t Step() {
    const BatchPlan plan = scheduler.Plan();
    for (const StateCopy& copy : plan.state_copies) content[copy.to] = content[copy.from];
    for (const PlannedSlice& slice : plan.slices) Compute(plan, slice);
    n_saves += static_cast<int64_t>(plan.saves.size());
    scheduler.Commit();
    for (const PlannedSlice& slice : plan.slices) {
      if (!slice.samples) continue;
      if (!slice.forks) {
        Append(*slice.sequence);
        continue;
      }
      for (const auto& choice : scheduler.Choices(slice.sequence->request)) Append(*choice);
    }
    scheduler.CheckInvariants();
    return plan.rows;
  }

  int64_t Finish(uint64_t id) {
    int64_t rows = 0;
    while (!scheduler.Choices(RequestId{id}).empty()) {
      rows += Step();
      if (Sequence* const first = FirstLive(id)) {
        if (first->length() >= first->prompt_len + 2) scheduler.Finish(*first);
      }
    }
    return rows;
  }
  Sequence* FirstLive(uint64_t id) {
    for (const auto& choice : scheduler.Choices(RequestId{id})) {
      if (choice->live()) return choice.get();
    }
    return nullptr;
  }

  BlockPool pool;
  PrefixIndex index;
  StatePool slots;
  Scheduler scheduler;
  std::map<StateId, std::vector<TokenId>> content;
  int64_t n_saves = 0;

 private:
  static std::vector<TokenId> First(const Sequence& sequence, int64_t n) {
    return {sequence.tokens.begin(), sequence.tokens.begin() + static_cast<std::ptrdiff_t>(n)};
  }

  void Compute(const BatchPlan& plan, const PlannedSlice& slice) {
    const Sequence& sequence = *slice.sequence;
    ASSERT_TRUE(sequence.state.has_value());
    EXPECT_TRUE(slots.MayWrite(*sequence.state));
    if (slice.first_position > 0) {
      EXPECT_EQ(content[*sequence.state], First(sequence, slice.first_position));
    }
    content[*sequence.state] = First(sequence, slice.first_position + slice.n_tokens);
    for (size_t i = slice.first_save; i < slice.first_save + slice.n_saves; ++i) {
      EXPECT_NE(plan.saves[i].state, *sequence.state);
      content[plan.saves[i].state] = First(sequence, plan.saves[i].position);
    }
  }

  // Choices of one request go different ways.
  void Append(Sequence& sequence) {
    if (sequence.live()) {
      scheduler.Append(sequence, static_cast<TokenId>(7 + sequence.choice + sequence.length() % 5));
    }
  }
};

SchedulerOptions StateOptions(int64_t max_seqs, int64_t chunk) {
  SchedulerOptions options;
  options.max_seqs = max_seqs;
  options.prefill_chunk_tokens = chunk;
  options.max_model_len = 512;
  options.snapshot_tokens = 64;
  return options;
}

std::vector<TokenId> Text(int64_t length, TokenId first) {
  std::vector<TokenId> tokens(static_cast<size_t>(length));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<TokenId> Joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(States, ARepeatedPromptComputesItsLastTokensOnly) {
  StateWorld world(StateOptions(4, 32), 64, 16);
  world.Add(1, Text(150, 0));
  world.Finish(1);

  world.Add(2, Text(150, 0));

  // The last border is 144; two tokens are generated, and one of them is computed.
  EXPECT_EQ(world.Finish(2), 150 - 144 + 1);
}

TEST(States, TheThirdTextWithACommonBeginningReusesAllOfItsFullBlocks) {
  StateWorld world(StateOptions(4, 512), 128, 16);
  const std::vector<TokenId> shared = Text(200, 0);  // its last full block ends at 192
  world.Add(1, Joined(shared, Text(40, 1000)));
  world.Finish(1);
  world.Add(2, Joined(shared, Text(40, 2000)));
  EXPECT_EQ(world.Finish(2), 240 - 192 + 1);  // a regular border
  world.Add(3, Joined(Text(170, 0), Text(40, 3000)));
  EXPECT_EQ(world.Finish(3), 210 - 128 + 1);  // the keys reach 160, the snapshot 128

  world.Add(4, Joined(Text(170, 0), Text(40, 4000)));

  EXPECT_EQ(world.Finish(4), 210 - 160 + 1);
}

TEST(States, TheSecondTextReusesTheBeginningThatTheFirstOneNamesAsShared) {
  StateWorld world(StateOptions(4, 512), 128, 16);
  const std::vector<TokenId> shared = Text(170, 0);  // its last full block ends at 160
  world.Add(1, Joined(shared, Text(40, 1000)), 1, 170);
  world.Finish(1);

  world.Add(2, Joined(shared, Text(40, 2000)), 1, 170);

  EXPECT_EQ(world.Finish(2), 210 - 160 + 1);
}

TEST(States, ASharedBeginningLongerThanThePromptOrAbsentChangesNothing) {
  StateWorld world(StateOptions(4, 512), 128, 16);
  world.Add(1, Text(100, 0), 1, 1'000'000);
  world.Finish(1);
  world.Add(2, Text(100, 0), 1, -5);

  EXPECT_EQ(world.Finish(2), 100 - 96 + 1);
}

TEST(States, AFollowerFindsTheStateWhereItLeavesItsLeader) {
  StateWorld world(StateOptions(4, 32), 128, 16);
  world.Add(1, Joined(Text(100, 0), Text(60, 1000)));
  world.Add(2, Joined(Text(100, 0), Text(9, 2000)));

  int64_t rows = 0;
  while (world.FirstLive(2)->computed_len < 109) rows += world.Step();

  EXPECT_EQ(world.FirstLive(2)->cached_len, 96);
}

TEST(States, ChoicesContinueTheSharedPromptEachOnItsOwn) {
  StateWorld world(StateOptions(8, 64), 128, 12);
  world.Add(1, Text(70, 0), 5);
  for (int i = 0; i < 40; ++i) world.Step();

  EXPECT_EQ(world.scheduler.num_running(), 5);
  for (const auto& choice : world.scheduler.Choices(RequestId{1})) {
    EXPECT_GT(choice->length(), 100);
  }
}

TEST(States, ADecodingSequenceKeepsOneSnapshotOfItsOwn) {
  StateWorld world(StateOptions(2, 64), 128, 32);
  world.Add(1, Text(20, 0));
  for (int i = 0; i < 200; ++i) world.Step();

  // Borders 64, 128 and 192 are regular; 16 is the prompt's, and the last one moves along.
  EXPECT_LE(world.slots.num_snapshots(), 5);
  EXPECT_GT(world.n_saves, 10);
}

TEST(States, WithOneSlotSequencesTakeTurnsAndAllEnd) {
  StateWorld world(StateOptions(3, 64), 128, 1);
  for (uint64_t id = 1; id <= 3; ++id) world.Add(id, Text(60, static_cast<TokenId>(100 * id)));

  for (uint64_t id = 1; id <= 3; ++id) world.Finish(id);

  EXPECT_TRUE(world.scheduler.idle());
  EXPECT_EQ(world.slots.num_held(), 0);
}

TEST(States, RandomTracesContinueTheirOwnTextsWithFewBlocksAndFewSlots) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    StateWorld world(StateOptions(pick(2, 6), pick(8, 80)), pick(32, 90), pick(1, 14));
    std::vector<uint64_t> ids;
    uint64_t next = 1;
    for (int step = 0; step < 250; ++step) {
      if (pick(0, 5) == 0) {
        std::vector<TokenId> prompt = Joined(Text(pick(0, 120), 0), Text(pick(1, 60), pick(0, 3)));
        world.Add(next, std::move(prompt), pick(0, 3) == 0 ? pick(2, 4) : 1);
        ids.push_back(next++);
      }
      if (!ids.empty()) {
        const uint64_t id = ids[static_cast<size_t>(pick(0, static_cast<int>(ids.size()) - 1))];
        const int what = pick(0, 30);
        if (what == 0) world.scheduler.Cancel(RequestId{id});
        if (what == 1) world.scheduler.SetPaused(RequestId{id}, true);
        if (what <= 4 && what > 1) world.scheduler.SetPaused(RequestId{id}, false);
      }
      world.Step();
      for (const uint64_t id : ids) {
        Sequence* const first = world.FirstLive(id);
        if (first != nullptr && first->length() > first->prompt_len + 40) {
          world.scheduler.Finish(*first);
        }
      }
      if (pick(0, 60) == 0 && world.scheduler.num_requests() == 0) world.scheduler.ForgetPrefixes();
    }
    for (const uint64_t id : ids) world.scheduler.Cancel(RequestId{id});
    EXPECT_EQ(world.slots.num_held(), 0);
    EXPECT_EQ(world.pool.num_free(), world.pool.capacity_blocks());
  }
}

}  // namespace
}  // namespace tandem::engine
