// How many steps a request waits for its first token beside others. The clock is the number of
// steps; failures print the seed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "engine/kv/block_pool.h"
#include "engine/kv/prefix_index.h"
#include "engine/sched/scheduler.h"

namespace tandem::engine {
namespace {

constexpr int64_t kChunk = 64;
constexpr int64_t kHalf = kChunk / 2;
constexpr int64_t kLongest = 16 * kChunk;

struct Job {
  std::vector<TokenId> prompt;
  int64_t to_generate = 1;
  WorkClass work_class = WorkClass::kInteractive;
};

// A scheduler whose steps compute at once. Requests end after their tokens.
class StepClock {
 public:
  StepClock(const SchedulerOptions& options, int64_t blocks)
      : pool_(blocks), index_(Sha256Digest{}), scheduler_(options, pool_, index_) {}

  struct Waiting {
    int64_t since = 0;  // the step after the arrival
    int64_t n_tokens = 0;
    int64_t to_generate = 0;
    WorkClass work_class = WorkClass::kInteractive;
    bool has_token = false;
  };
  // Rows of one request in one step.
  using Row = std::tuple<uint64_t, int64_t, int64_t>;  // request, first position, tokens

  uint64_t Add(const Job& job) { return Add(job, next_id_++); }
  uint64_t Add(const Job& job, uint64_t id) {
    scheduler_.Add({.id = RequestId{id}, .prompt = job.prompt, .work_class = job.work_class});
    live_[id] = {step_, static_cast<int64_t>(job.prompt.size()), job.to_generate, job.work_class};
    return id;
  }
  const Sequence& Of(uint64_t id) const { return *scheduler_.Choices(RequestId{id})[0]; }

  // Returns the rows of the step by request.
  const std::vector<Row>& Step() {
    const BatchPlan& plan = scheduler_.Plan();
    rows_.clear();
    first_tokens_.clear();
    for (const PlannedSlice& slice : plan.slices) {
      rows_.emplace_back(slice.sequence->request.value, slice.first_position, slice.n_tokens);
    }
    const std::vector<PlannedSlice> slices = plan.slices;
    scheduler_.Commit();
    for (const PlannedSlice& slice : slices) {
      if (!slice.samples) continue;
      const uint64_t id = slice.sequence->request.value;
      Waiting& waiting = live_.at(id);
      if (!std::exchange(waiting.has_token, true)) first_tokens_.push_back(id);
      if (--waiting.to_generate > 0) {
        scheduler_.Append(*slice.sequence, 7);
      } else {
        scheduler_.Finish(*slice.sequence);
        ended_[id] = waiting;
        live_.erase(id);
      }
    }
    if (++step_ % 32 == 0) scheduler_.CheckInvariants();
    return rows_;
  }
  const Waiting& About(uint64_t id) const {
    const auto live = live_.find(id);
    return live != live_.end() ? live->second : ended_.at(id);
  }

  int64_t step() const { return step_; }
  const std::vector<uint64_t>& first_tokens() const { return first_tokens_; }  // of the last step
  const std::map<uint64_t, Waiting>& live() const { return live_; }
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  BlockPool pool_;
  PrefixIndex index_;
  Scheduler scheduler_;
  int64_t step_ = 0;
  uint64_t next_id_ = 0;
  std::map<uint64_t, Waiting> live_;
  std::map<uint64_t, Waiting> ended_;
  std::vector<Row> rows_;
  std::vector<uint64_t> first_tokens_;
};

SchedulerOptions ChunkOptions(int64_t max_seqs, bool prefix_cache) {
  SchedulerOptions options;
  options.max_seqs = max_seqs;
  options.prefill_chunk_tokens = kChunk;
  options.batch_chunk_tokens = kChunk / 4;
  options.max_model_len = kLongest + 64;
  options.prefix_cache = prefix_cache;
  return options;
}

class RandomJobs {
 public:
  explicit RandomJobs(uint64_t seed) : random_(seed) {}

  int64_t Pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool Chance(int64_t one_in) { return Pick(1, one_in) == 1; }
  // Prompts begin alike in half of the cases. A long one has more than a chunk of its own.
  Job Make(int64_t length, int64_t to_generate) {
    Job job;
    const bool begins_alike = Chance(2);
    const int64_t shared = Pick(0, length <= kChunk ? length : length - kChunk - 1);
    for (int64_t i = 0; i < length; ++i) {
      job.prompt.push_back(
          static_cast<TokenId>(begins_alike && i < shared ? 1 : Pick(2, 1'000'000)));
    }
    job.to_generate = to_generate;
    return job;
  }
  Job Short() { return Make(Pick(1, kChunk), Pick(1, 3)); }
  Job Long() { return Make(Pick(kChunk + 1, kLongest), Pick(1, 30)); }

 private:
  std::mt19937_64 random_;
};

// A step that is in progress when a short request arrives is the first of the two. So the request
// has its first token in the second step after its arrival, if the short prompts need one chunk.
// It has it one step later if it shares a prefix, because it takes the blocks in the next step.
TEST(FirstToken, OfAShortRequestWaitsForAtMostTwoStepsOfOtherPeoplesPrompts) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomJobs random(seed);
    const bool shares_prefixes = seed % 2 == 0;
    StepClock clock(ChunkOptions(64, shares_prefixes), 64 * 80);
    const int64_t one_long_in = random.Pick(1, 12);
    int64_t n_shorts = 0;
    for (int64_t step = 0; step < 400; ++step) {
      if (clock.live().size() < 50 && random.Chance(one_long_in)) clock.Add(random.Long());
      // The next short prompts come when those before have their first token.
      if (clock.live().size() < 60 && random.Chance(3)) {
        std::set<uint64_t> shorts;
        for (int64_t left = kChunk; left > 0 && shorts.size() < 4;) {
          const int64_t length = random.Pick(1, left);
          left -= length;
          shorts.insert(clock.Add(random.Make(length, random.Pick(1, 3))));
        }
        for (int steps = 1; !shorts.empty(); ++steps) {
          ASSERT_LE(steps, shares_prefixes ? 3 : 2);
          clock.Step();
          for (const uint64_t id : clock.first_tokens()) n_shorts += shorts.erase(id);
        }
      }
      clock.Step();
    }
    EXPECT_GT(n_shorts, 20);
  }
}

// Under any load of short prompts, they share at least half of each step's prompt tokens.
TEST(FirstToken, OfAShortRequestWaitsForShortPromptsAloneBeyondThat) {
  int64_t longest_wait = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomJobs random(seed);
    const bool shares_prefixes = seed % 2 == 0;
    StepClock clock(ChunkOptions(256, shares_prefixes), 256 * 80);
    std::map<uint64_t, int64_t> work;  // of a waiting short request: short tokens that may precede
    for (int64_t step = 0; step < 300; ++step) {
      if (clock.live().size() < 30 && random.Chance(6)) clock.Add(random.Long());
      for (int i = 0; i < 4 && random.Chance(5) && clock.live().size() < 250; ++i) {
        const Job job = random.Short();
        const auto length = static_cast<int64_t>(job.prompt.size());
        int64_t before = length;
        for (auto& [id, tokens] : work) {
          tokens += length;
          before += clock.Of(id).uncomputed();
        }
        work[clock.Add(job)] = before;
      }
      clock.Step();
      for (const uint64_t id : clock.first_tokens()) {
        const auto found = work.find(id);
        if (found == work.end()) continue;
        const int64_t waited = clock.step() - clock.About(id).since;
        const int64_t bound = (found->second + kHalf - 1) / kHalf;
        ASSERT_LE(waited, bound + (shares_prefixes ? 1 : 0)) << "request " << id;
        longest_wait = std::max(longest_wait, waited);
        work.erase(found);
      }
    }
  }
  EXPECT_GT(longest_wait, 2) << "there was no crowd";
}

// Whatever arrives later, the first in line has half of every step.
TEST(FirstToken, OfALongRequestWaitsForEarlierRequestsAtHalfSpeedAtMost) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomJobs random(seed);
    StepClock clock(ChunkOptions(256, seed % 2 == 0), 256 * 80);
    std::map<uint64_t, int64_t> bound;  // steps
    int64_t n_long = 0;
    for (int64_t step = 0; step < 1000; ++step) {
      // More short prompts than fit beside the first in line.
      while (clock.live().size() < 200 && random.Chance(2)) clock.Add(random.Short());
      if (clock.live().size() < 200 && random.Chance(30)) {
        int64_t steps = 0;
        for (const auto& [id, waiting] : clock.live()) {
          steps += (clock.Of(id).uncomputed() + kHalf - 1) / kHalf;
        }
        const uint64_t id = clock.Add(random.Long());
        bound[id] = steps + (clock.About(id).n_tokens + kHalf - 1) / kHalf;
        ++n_long;
      }
      clock.Step();
      for (const uint64_t id : clock.first_tokens()) bound.erase(id);
      for (const auto& [id, steps] : bound) {
        ASSERT_LE(clock.step() - clock.About(id).since, steps) << "request " << id;
      }
    }
    EXPECT_GT(n_long, 5);
  }
}

TEST(FirstToken, OfAShortRequestDoesNotWaitForALongLeader) {
  StepClock clock(ChunkOptions(8, true), 8 * 80);
  RandomJobs random(1);
  clock.Add(random.Make(kLongest, 1));
  Job second = random.Make(kLongest, 1);
  clock.Add(second);
  clock.Step();
  // Begins like the second long prompt, which is not the first in line.
  Job follower = second;
  follower.prompt.resize(kChunk);
  const uint64_t id = clock.Add(follower);
  clock.Step();
  clock.Step();
  EXPECT_TRUE(clock.About(id).has_token || clock.Of(id).uncomputed() <= kHalf);
  clock.Step();
  EXPECT_TRUE(clock.About(id).has_token);
}

TEST(FirstToken, OfAShortRequestDoesNotWaitForAPlaceOfALongPrompt) {
  StepClock clock(ChunkOptions(3, false), 8 * 80);
  RandomJobs random(1);
  std::vector<uint64_t> longs;
  for (int i = 0; i < 3; ++i) longs.push_back(clock.Add(random.Make(kLongest, 1)));
  clock.Step();
  const int64_t computed = clock.Of(longs[2]).computed_len;
  const uint64_t id = clock.Add(random.Make(10, 1));
  clock.Step();

  EXPECT_TRUE(clock.About(id).has_token);
  EXPECT_EQ(clock.Of(longs[2]).phase, SequencePhase::kWaiting);
  EXPECT_EQ(clock.Of(longs[2]).computed_len, computed) << "it keeps its blocks";
  clock.Step();
  EXPECT_EQ(clock.Of(longs[2]).phase, SequencePhase::kRunning);
}

TEST(FirstToken, OfAShortScoredPromptDoesNotWaitForALongScoredOne) {
  SchedulerOptions options = ChunkOptions(8, false);
  options.score_chunk_tokens = 8;
  BlockPool pool(8 * 80);
  PrefixIndex index(Sha256Digest{});
  Scheduler scheduler(options, pool, index);
  scheduler.Add({.id = RequestId{1}, .prompt = std::vector<TokenId>(500), .scores_prompt = true});
  scheduler.Plan();
  scheduler.Commit();
  scheduler.Add({.id = RequestId{2}, .prompt = std::vector<TokenId>(8), .scores_prompt = true});
  for (int i = 0; i < 2; ++i) {
    scheduler.Plan();
    scheduler.Commit();
  }
  EXPECT_EQ(scheduler.Choices(RequestId{2})[0]->uncomputed(), 0);
}

// ---- Batches

TEST(BatchClass, GivesItsPlaceToInteractiveWorkAndKeepsItsBlocks) {
  StepClock clock(ChunkOptions(2, false), 8 * 80);
  RandomJobs random(1);
  Job batch = random.Make(20, 100);
  batch.work_class = WorkClass::kBatch;
  const uint64_t first = clock.Add(batch);
  const uint64_t second = clock.Add(batch);
  clock.Step();
  clock.Step();
  const uint64_t interactive = clock.Add(random.Make(kLongest, 1));
  clock.Step();

  EXPECT_EQ(clock.Of(interactive).phase, SequencePhase::kRunning);
  EXPECT_EQ(clock.Of(first).phase, SequencePhase::kRunning);
  EXPECT_EQ(clock.Of(second).phase, SequencePhase::kWaiting);
  EXPECT_EQ(clock.scheduler().num_running_batch(), 1);
  EXPECT_EQ(clock.scheduler().num_waiting_batch(), 1);
  EXPECT_FALSE(clock.Of(second).blocks().empty());
}

TEST(BatchClass, TakesThePausedInteractiveBlocksWhenNothingElseRuns) {
  SchedulerOptions options = ChunkOptions(4, false);
  options.max_model_len = 8 * kTokensPerBlock;
  BlockPool pool(8);
  PrefixIndex index(Sha256Digest{});
  Scheduler scheduler(options, pool, index);
  scheduler.Add(
      {.id = RequestId{1}, .prompt = std::vector<TokenId>(100), .work_class = WorkClass::kBatch});
  scheduler.Plan();
  scheduler.Commit();
  scheduler.SetPaused(RequestId{1}, true);  // with half of its prompt
  scheduler.Add({.id = RequestId{2}, .prompt = std::vector<TokenId>(40)});
  scheduler.Plan();
  scheduler.Commit();
  scheduler.SetPaused(RequestId{2}, true);
  scheduler.SetPaused(RequestId{1}, false);

  const BatchPlan& plan = scheduler.Plan();

  ASSERT_EQ(plan.slices.size(), 1u);
  EXPECT_EQ(plan.slices[0].sequence->request, RequestId{1});
  EXPECT_TRUE(scheduler.Choices(RequestId{2})[0]->blocks().empty());
}

// Two schedulers get the same interactive requests; one has batches beside them. Memory and places
// are scarce. The cache is off, because batches change what it holds.
TEST(BatchClass, ChangesNoRowOfInteractiveWorkInAnyStep) {
  int64_t batch_rows = 0;
  int64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    RandomJobs random(seed);
    const SchedulerOptions options = ChunkOptions(random.Pick(1, 6), false);
    const int64_t blocks = random.Pick(68, 150);
    StepClock alone(options, blocks);
    StepClock beside(options, blocks);
    for (uint64_t step = 0; step < 400; ++step) {
      if (random.Chance(20) && alone.live().size() < 8) {
        const Job job = random.Chance(3) ? random.Long() : random.Short();
        alone.Add(job, step);
        beside.Add(job, step);
      }
      while (beside.live().size() < alone.live().size() + 5) {
        Job job = random.Chance(3) ? random.Long() : random.Short();
        job.work_class = WorkClass::kBatch;
        beside.Add(job, 1'000'000 + step * 10 + beside.live().size());
      }
      std::vector<StepClock::Row> rows = beside.Step();
      batch_rows +=
          std::erase_if(rows, [](const auto& row) { return std::get<0>(row) >= 1'000'000; });
      ASSERT_EQ(rows, alone.Step()) << "step " << step;
    }
    preemptions += beside.scheduler().counters().preemptions;
  }
  EXPECT_GT(batch_rows, 10'000);
  EXPECT_GT(preemptions, 100) << "memory was not scarce";
}

TEST(BatchClass, HasNoRowsBesideAnInteractivePromptAndFewBesideInteractiveDecodes) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    RandomJobs random(seed);
    StepClock clock(ChunkOptions(16, true), 16 * 80);
    int64_t small_chunks = 0;
    for (uint64_t step = 0; step < 300; ++step) {
      while (clock.live().size() < 12) {
        Job job = random.Chance(2) ? random.Long() : random.Short();
        job.work_class = random.Chance(4) ? WorkClass::kInteractive : WorkClass::kBatch;
        clock.Add(job);
      }
      bool has_interactive = false;
      bool has_interactive_prompt = false;
      int64_t batch_rows = 0;
      int64_t batch_prompt_rows = 0;
      std::map<uint64_t, bool> had_token;
      for (const auto& [id, waiting] : clock.live()) had_token[id] = waiting.has_token;
      for (const auto& [id, position, n_tokens] : clock.Step()) {
        if (clock.About(id).work_class == WorkClass::kInteractive) {
          has_interactive = true;
          has_interactive_prompt = has_interactive_prompt || n_tokens > 1;
        } else {
          batch_rows += n_tokens;
          batch_prompt_rows += n_tokens > 1 ? n_tokens : 0;
        }
      }
      if (has_interactive_prompt) {
        ASSERT_EQ(batch_rows, 0);
      }
      if (has_interactive) {
        ASSERT_LE(batch_prompt_rows, kChunk / 4);
        small_chunks += batch_prompt_rows > 0 ? 1 : 0;
      }
    }
    EXPECT_GT(small_chunks, 0);
  }
}

TEST(BatchClass, HasTheWholeStepLongAfterTheLastInteractiveRequest) {
  StepClock clock(ChunkOptions(4, false), 8 * 80);
  RandomJobs random(1);
  Job batch = random.Make(kLongest, 1);
  batch.work_class = WorkClass::kBatch;
  const auto rows = [&] {
    clock.Add(batch);
    int64_t n = 0;
    for (const auto& row : clock.Step()) n += std::get<2>(row);
    return n;
  };
  EXPECT_EQ(rows(), kChunk) << "no interactive request has come yet";
  clock.Add(random.Make(8, 1));
  EXPECT_EQ(rows(), 8);
  EXPECT_EQ(rows(), kChunk / 4);
  for (int i = 0; i < 2; ++i) {
    Job decodes = random.Make(1, 1000);
    decodes.work_class = WorkClass::kBatch;
    clock.Add(decodes);
  }
  EXPECT_EQ(rows(), kChunk / 4) << "decodes count";
  int64_t steps = 0;
  while (rows() < kChunk) ASSERT_LE(++steps, 2000);
}

TEST(BatchClass, EndsWhenInteractiveWorkEnds) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    RandomJobs random(seed);
    StepClock clock(ChunkOptions(random.Pick(1, 4), true), random.Pick(68, 150));
    int64_t bound = 100;
    for (int i = 0; i < 20; ++i) {
      Job job = random.Chance(2) ? random.Long() : random.Short();
      if (i % 2 == 0) job.work_class = WorkClass::kBatch;
      bound += static_cast<int64_t>(job.prompt.size()) + job.to_generate;
      clock.Add(job);
      clock.Step();
    }
    for (; !clock.live().empty(); --bound) {
      ASSERT_GT(bound, 0);
      clock.Step();
    }
  }
}

}  // namespace
}  // namespace tandem::engine
