// Blocks of prefixes that only an archive has: what a plan takes from it, and what it gives to it.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <new>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "engine/sched/scheduler.h"

namespace tandem::engine {
namespace {

// Remembers names instead of bytes.
class FakeArchive final : public PrefixArchive {
 public:
  using Name = std::pair<Sha256Digest, size_t>;
  bool Has(const Sha256Digest& key, size_t table) const override {
    return names.contains({key, table});
  }
  void Save(const Sha256Digest& key, size_t table, BlockId) override {
    if (has_no_memory) throw std::bad_alloc();
    names.insert({key, table});
  }
  bool Load(const Sha256Digest& key, size_t table, BlockId) override {
    if (has_no_memory) throw std::bad_alloc();
    if (damaged.erase({key, table}) == 0) return ++loads, true;
    names.erase({key, table});
    return false;
  }
  std::set<Name> names;
  std::set<Name> damaged;
  int loads = 0;
  bool has_no_memory = false;
};

SchedulerOptions ArchiveOptions(std::vector<KvWindow> windows = {KvWindow{}}) {
  SchedulerOptions options;
  options.max_seqs = 4;
  options.prefill_chunk_tokens = 512;
  options.max_model_len = 256;
  options.windows = std::move(windows);
  return options;
}

// One start of a server; the archive outlives it.
class ArchiveWorld {
 public:
  ArchiveWorld(const SchedulerOptions& options, int64_t blocks, FakeArchive& beyond)
      : archive(beyond),
        pool(blocks),
        index(Sha256Digest{}, options.windows),
        scheduler(options, pool, index, nullptr, &beyond) {}

  // Computes a prompt of `length` tokens; returns its tokens from the cache.
  int64_t Compute(uint64_t id, int64_t length, TokenId first = 0) {
    std::vector<TokenId> prompt(static_cast<size_t>(length));
    std::iota(prompt.begin(), prompt.end(), first);
    scheduler.Add({.id = RequestId{id}, .prompt = std::move(prompt)});
    int64_t cached = -1;
    while (cached < 0) {
      const int loads_before = archive.loads;
      const BatchPlan& plan = scheduler.Plan();
      if (++plans > 10'000) {
        ADD_FAILURE() << "without end";
        return cached;
      }
      most_loads = std::max(most_loads, archive.loads - loads_before);
      if (plan.slices.empty()) {
        EXPECT_TRUE(plan.awaits_archive);
        scheduler.CheckInvariants();
        continue;
      }
      const bool is_complete = plan.slices.at(0).samples;
      Sequence& sequence = *plan.slices[0].sequence;
      scheduler.Commit();
      scheduler.CheckInvariants();
      if (!is_complete) continue;
      cached = sequence.cached_len;
      scheduler.Finish(sequence);
    }
    scheduler.CheckInvariants();
    return cached;
  }

  FakeArchive& archive;
  BlockPool pool;
  PrefixIndex index;
  Scheduler scheduler;
  int plans = 0;
  int most_loads = 0;  // of one plan
};

TEST(Archive, APrefixOutlivesTheSchedulerInOneTable) {
  FakeArchive archive;
  EXPECT_EQ(ArchiveWorld(ArchiveOptions(), 32, archive).Compute(1, 100), 0);
  EXPECT_EQ(archive.names.size(), 6u);
  ArchiveWorld again(ArchiveOptions(), 32, archive);
  EXPECT_EQ(again.Compute(1, 100), 96);
  EXPECT_EQ(archive.loads, 6);
  EXPECT_EQ(again.scheduler.counters().archive_blocks, 6);
  // What is in memory is not read again.
  EXPECT_EQ(again.Compute(2, 100), 96);
  EXPECT_EQ(archive.loads, 6);
}

TEST(Archive, WindowsNeedTheirLastBlocksOnly) {
  const SchedulerOptions options = ArchiveOptions({KvWindow{}, KvWindow::Sliding(24)});
  FakeArchive archive;
  ArchiveWorld(options, 64, archive).Compute(1, 120);
  ArchiveWorld again(options, 64, archive);
  EXPECT_EQ(again.Compute(1, 120), 112);
  EXPECT_EQ(archive.loads, 7 + 2);
}

TEST(Archive, APlanTakesAFewBlocksAndTheNextTakesMore) {
  FakeArchive archive;
  ArchiveWorld(ArchiveOptions(), 32, archive).Compute(1, 100);
  SchedulerOptions options = ArchiveOptions();
  options.archive_blocks = 1;
  ArchiveWorld again(options, 32, archive);
  EXPECT_EQ(again.Compute(1, 100), 96);
  EXPECT_EQ(archive.loads, 6);
  EXPECT_EQ(again.most_loads, 1);
  EXPECT_GE(again.plans, 6);
}

// The blocks of a prefix would push each other out: it is computed where the pool cannot hold it.
TEST(Archive, APrefixThatDoesNotFitBesideAPausedTextEndsInAPlan) {
  SchedulerOptions options = ArchiveOptions({KvWindow{}, KvWindow::Sliding(24)});
  options.prefill_chunk_tokens = 16;
  options.archive_blocks = 1;
  FakeArchive archive;
  ArchiveWorld(options, 20, archive).Compute(1, 200);
  ArchiveWorld again(options, 20, archive);
  std::vector<TokenId> other(100);
  std::iota(other.begin(), other.end(), 5000);
  again.scheduler.Add({.id = RequestId{7}, .prompt = other});
  for (bool is_complete = false; !is_complete; again.scheduler.Commit()) {
    is_complete = again.scheduler.Plan().slices.at(0).samples;
  }
  again.scheduler.SetPaused(RequestId{7}, true);
  ASSERT_LT(again.pool.num_free(), 12 + 2);
  EXPECT_GE(again.Compute(1, 200), 0);
  EXPECT_EQ(again.most_loads, 1);
  EXPECT_LT(again.plans, 100);
}

TEST(Archive, AnArchiveWithoutMemoryCostsItsBlocksOnly) {
  FakeArchive archive;
  ArchiveWorld(ArchiveOptions(), 17, archive).Compute(1, 200);
  archive.has_no_memory = true;
  ArchiveWorld again(ArchiveOptions(), 17, archive);
  EXPECT_EQ(again.Compute(1, 200), 0);
  EXPECT_EQ(again.Compute(2, 200, 1000), 0);  // drives cached blocks out
  archive.has_no_memory = false;
  EXPECT_EQ(again.Compute(3, 200), 192);
}

TEST(Archive, KeepsWhatIsForgottenInMemory) {
  FakeArchive archive;
  ArchiveWorld world(ArchiveOptions(), 32, archive);
  EXPECT_EQ(world.Compute(1, 100), 0);
  archive.names.clear();  // the archive had no room
  EXPECT_EQ(world.scheduler.ForgetIdle(1, 100).n_blocks, 0);
  world.pool.Age();
  const Scheduler::Forgotten forgotten = world.scheduler.ForgetIdle(1, 100);
  world.scheduler.CheckInvariants();
  EXPECT_EQ(forgotten.n_blocks, 7);
  ASSERT_EQ(forgotten.ranges.size(), 1u);
  EXPECT_EQ(forgotten.ranges[0].n, 32);
  EXPECT_EQ(world.index.size(), 0);
  EXPECT_EQ(archive.names.size(), 6u);
  EXPECT_EQ(world.Compute(2, 100), 96);
  EXPECT_EQ(archive.loads, 6);
}

TEST(Archive, DamagedBlocksEndTheMatch) {
  FakeArchive archive;
  ArchiveWorld(ArchiveOptions(), 32, archive).Compute(1, 100);
  archive.damaged = archive.names;
  // One of them is whole: the chain begins with it, or is computed from the beginning.
  ArchiveWorld again(ArchiveOptions(), 32, archive);
  EXPECT_EQ(again.Compute(1, 100), 0);
  EXPECT_EQ(again.Compute(2, 100), 96);  // from memory
}

TEST(Archive, NeitherTakesBlocksOfRunningSequencesNorItsOwnBeginning) {
  FakeArchive archive;
  for (const TokenId first : {0, 1000, 2000}) {
    ArchiveWorld(ArchiveOptions(), 32, archive).Compute(1, 200, first);
  }
  // Blocks for one sequence of the greatest length.
  ArchiveWorld small(ArchiveOptions(), 17, archive);
  for (int round = 0; round < 3; ++round) {
    for (const TokenId first : {0, 1000, 2000}) {
      EXPECT_EQ(small.Compute(static_cast<uint64_t>(first + round + 1), 200, first), 192);
    }
  }
}

}  // namespace
}  // namespace tandem::engine
