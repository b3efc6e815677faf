// The scheduler out of memory: at every allocation of three requests, from Add to their end.

#include "engine/sched/scheduler.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "engine/base/out_of_memory.h"
#include "tests/out_of_memory/failing_new.h"

namespace tandem::engine {
namespace {

// By the number of tables.
constexpr int64_t kBlocks[] = {0, 12, 20};
constexpr size_t kAnswerTokens = 20;

// Runs steps like the loop. A request that lacks memory is cancelled; the others must finish.
class World {
 public:
  explicit World(const std::vector<KvWindow>& windows)
      : pool(kBlocks[windows.size()]),
        index(Sha256Digest{}, windows),
        scheduler(Options(windows), pool, index) {
    ids.reserve(8);
  }

  static SchedulerOptions Options(const std::vector<KvWindow>& windows) {
    SchedulerOptions options;
    options.windows = windows;
    options.max_seqs = 3;
    options.prefill_chunk_tokens = 24;
    options.max_model_len = 128;
    return options;
  }

  // Two share a prefix, one has two choices; together they need more blocks than the pool has.
  void AddAll() {
    Add(1, 40, 1);
    Add(2, 40, 2);
    Add(3, 70, 1);
  }

  void Add(uint64_t id, int64_t length, int n) {
    const bool is_added = HasMemoryFor([&] {
      std::vector<TokenId> prompt(static_cast<size_t>(length));
      std::iota(prompt.begin(), prompt.end(), 0);
      scheduler.Add({.id = RequestId{id}, .prompt = std::move(prompt), .n = n});
    });
    Check();
    if (is_added) ids.push_back(RequestId{id});
  }

  void Step() {
    const BatchPlan* plan = nullptr;
    if (!HasMemoryFor([&] { plan = &scheduler.Plan(); })) {
      Check();
      return;
    }
    if (!HasMemoryFor([&] { scheduler.Commit(); })) {
      CancelAll();
      return;
    }
    for (const PlannedSlice& slice : plan->slices) {
      if (!slice.samples) continue;
      if (!HasMemoryFor([&] { Sample(slice); })) {
        CancelAll();
        return;
      }
    }
    Check();
  }

  void Sample(const PlannedSlice& slice) {
    if (!slice.forks) return Continue(*slice.sequence);
    const auto choices = scheduler.Choices(slice.sequence->request);
    for (const auto& choice : choices) Continue(*choice);
  }

  void Continue(Sequence& sequence) {
    if (sequence.tokens.size() >= static_cast<size_t>(sequence.prompt_len) + kAnswerTokens) {
      scheduler.Finish(sequence);
    } else {
      scheduler.Append(sequence, 7);
    }
  }

  void CancelAll() {
    for (const RequestId id : ids) scheduler.Cancel(id);
    Check();
  }

  void Check() const {
    const tests::SpareThisThread spared;
    scheduler.CheckInvariants();
  }

  BlockPool pool;
  PrefixIndex index;
  Scheduler scheduler;
  std::vector<RequestId> ids;
};

class SchedulerOutOfMemoryTest : public testing::TestWithParam<std::vector<KvWindow>> {};

TEST_P(SchedulerOutOfMemoryTest, AfterAnyFailedAllocationItsStateIsSoundAndEveryRequestEnds) {
  bool has_failed = true;
  int64_t k = 0;
  while (has_failed) {
    World world(GetParam());
    const tests::FailAllocation failure(++k);
    world.AddAll();
    for (int step = 0; step < 200 && !world.scheduler.idle(); ++step) world.Step();

    has_failed = failure.has_failed();
    const tests::SpareThisThread spared;
    ASSERT_TRUE(world.scheduler.idle()) << "allocation " << k;
    ASSERT_EQ(world.scheduler.num_requests(), 0) << "allocation " << k;
    ASSERT_EQ(world.scheduler.num_queued_requests(), 0) << "allocation " << k;
    ASSERT_EQ(world.pool.num_free(), world.pool.capacity_blocks()) << "allocation " << k;
    ASSERT_EQ(world.scheduler.TakeLeftQueue().size(), world.ids.size()) << "allocation " << k;
  }
  EXPECT_GT(k, 100);
}

INSTANTIATE_TEST_SUITE_P(Windows, SchedulerOutOfMemoryTest,
                         testing::Values(std::vector<KvWindow>{{}},
                                         std::vector<KvWindow>{{}, KvWindow::Sliding(20)},
                                         std::vector<KvWindow>{{}, KvWindow::Chunk(32)}));

}  // namespace
}  // namespace tandem::engine
