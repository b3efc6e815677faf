// S5: random traces of add, fork, cancel, pause, preempt and finish against the scheduler. The
// "model" records which prefix each slot of each KV block was computed for. A step may read only
// slots of its own sequence.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/kv/block_pool.h"
#include "engine/kv/prefix_index.h"
#include "engine/sched/scheduler.h"

namespace tandem::engine {
namespace {

uint64_t Mix(uint64_t h, uint64_t value) {
  h ^= value + 0x9e3779b97f4a7c15ULL + (h << 6) + (h >> 2);
  h ^= h >> 31;
  return h * 0xbf58476d1ce4e5b9ULL;
}

// For each position, a hash of all tokens that its keys and values depend on.
std::vector<uint64_t> PrefixHashes(const std::vector<TokenId>& tokens) {
  std::vector<uint64_t> hashes;
  uint64_t h = 1;
  for (const TokenId token : tokens) hashes.push_back(h = Mix(h, static_cast<uint64_t>(token) + 7));
  return hashes;
}

struct TraceOptions {
  bool prefix_cache = true;
  bool ample_blocks = false;  // no preemption possible
  bool windows = false;       // several tables of blocks, with random windows
};

// One random trace. Throws Error (kInternal) for a broken promise.
class Trace {
 public:
  Trace(uint64_t seed, const TraceOptions& options) : seed_(seed), random_(seed) {
    scheduler_options_.max_seqs = Pick(1, 6);
    scheduler_options_.prefill_chunk_tokens = Pick(1, 48);
    scheduler_options_.score_chunk_tokens = Pick(1, 9);
    scheduler_options_.batch_chunk_tokens = Pick(1, 20);
    scheduler_options_.max_model_len = Pick(2, 150);
    scheduler_options_.prefix_cache = options.prefix_cache;
    // Of its own source, so that traces with and without windows are the same otherwise.
    std::mt19937_64 windows(Mix(seed, 1));
    if (options.windows) {
      std::vector<KvWindow>& by_table = scheduler_options_.windows;
      by_table.resize(1 + windows() % 3);
      for (KvWindow& window : by_table) {
        const auto kind = windows() % 4;
        const auto tokens = static_cast<int64_t>(1 + windows() % 60);
        if (kind == 1) window = KvWindow::Chunk(BlocksFor(tokens) * kTokensPerBlock);
        if (kind >= 2) window = KvWindow::Sliding(tokens);
      }
    }
    const int64_t one =
        MostBlocksOfSequence(scheduler_options_.windows, scheduler_options_.max_model_len,
                             scheduler_options_.prefill_chunk_tokens);
    const int64_t few = Pick(one, one * 5);
    const int64_t blocks = options.ample_blocks ? one * 400 : few;
    pool_ = std::make_unique<BlockPool>(blocks);
    index_ = std::make_unique<PrefixIndex>(Sha256Digest{}, scheduler_options_.windows);
    scheduler_ = std::make_unique<Scheduler>(scheduler_options_, *pool_, *index_);
    slots_.assign(static_cast<size_t>(blocks * kTokensPerBlock), 0);
    for (auto& text : texts_) {
      for (int64_t i = 0; i < scheduler_options_.max_model_len; ++i)
        text.push_back(Token(Pick(0, 1)));
    }
  }

  // Runs the random part, then finishes all remaining requests.
  void Run(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      if (Pick(0, 3) == 0 && live_.size() < 12) Add();
      if (Pick(0, 19) == 0) Cancel();
      if (Pick(0, 9) == 0) TogglePause();
      Step();
    }
    int64_t bound = 16;
    for (auto& [id, request] : live_) {
      scheduler_->SetPaused(id, false);
      request.paused = false;
      bound += request.n * (scheduler_options_.max_model_len + 2);
    }
    // The first in line advances in every step, so this many steps finish all requests.
    for (; !live_.empty() && bound > 0; --bound) Step();
    Expect(live_.empty(), "somebody starved");
    Expect(scheduler_->idle() && scheduler_->num_requests() == 0, "the scheduler is not idle");
    Expect(pool_->num_free() == pool_->capacity_blocks(), "blocks leaked");
    for (const auto& [id, ends] : terminal_events_) Expect(ends == 1, "terminal events");
    Expect(terminal_events_.size() == next_id_, "a request vanished");
  }

  int64_t steps() const { return steps_; }
  const Scheduler::Counters& counters() const { return scheduler_->counters(); }
  // The generated tokens of every finished choice.
  const std::map<std::pair<uint64_t, int>, std::vector<TokenId>>& completions() const {
    return completions_;
  }

 private:
  struct Live {
    int n = 1;
    int64_t prompt_len = 0;
    int64_t max_new = 0;
    bool paused = false;
    bool scores = false;
    int ended = 0;
  };

  static void Expect(bool condition, const char* what) {
    if (!condition) throw Error(ErrorCode::kInternal, what);
  }
  int64_t Pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  static TokenId Token(int64_t value) { return static_cast<TokenId>(value); }

  // A request depends only on the seed and its number, not on earlier events.
  void Add() {
    Scheduler::Request request;
    request.id = RequestId{next_id_++};
    std::mt19937_64 random(Mix(seed_, request.id.value));
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const int64_t max_len = scheduler_options_.max_model_len;
    Live live;
    live.prompt_len = pick(1, max_len - 1);
    live.max_new = pick(0, std::min<int64_t>(max_len - live.prompt_len, 40));
    live.n = pick(0, 3) == 0 ? static_cast<int>(pick(2, 5)) : 1;
    live.scores = pick(0, 7) == 0;
    const auto& text = texts_[static_cast<size_t>(pick(0, 2))];
    request.prompt.assign(text.begin(), text.begin() + live.prompt_len);
    if (pick(0, 1) == 0) request.prompt[static_cast<size_t>(pick(0, live.prompt_len - 1))] = 2;
    request.n = live.n;
    request.priority = static_cast<int>(pick(0, 1));
    request.scores_prompt = live.scores;
    if (pick(0, 2) == 0) request.work_class = WorkClass::kBatch;
    live_[request.id] = live;
    scheduler_->Add(std::move(request));
  }

  RequestId AnyLive() {
    auto it = live_.begin();
    std::advance(it, Pick(0, static_cast<int64_t>(live_.size()) - 1));
    return it->first;
  }

  void Cancel() {
    if (live_.empty()) return;
    const RequestId id = AnyLive();
    Expect(scheduler_->Cancel(id), "cancel of a live request");
    Expect(!scheduler_->Cancel(id), "second cancel");
    ++terminal_events_[id.value];
    live_.erase(id);
  }

  void TogglePause() {
    if (live_.empty()) return;
    const RequestId id = AnyLive();
    live_[id].paused = !live_[id].paused;
    scheduler_->SetPaused(id, live_[id].paused);
  }

  uint64_t& Slot(const BlockTable& table, int64_t position) {
    const BlockId block = table.at(static_cast<size_t>(position / kTokensPerBlock));
    return slots_.at(block.value * static_cast<size_t>(kTokensPerBlock) +
                     static_cast<size_t>(position % kTokensPerBlock));
  }

  void Step() {
    ++steps_;
    const BatchPlan& plan = scheduler_->Plan();
    scheduler_->CheckInvariants();
    Expect(plan.slices.empty() == scheduler_->idle(),
           "a step without work, or work without a step");
    CheckPlan(plan);
    for (const BlockCopy& copy : plan.copies) {
      for (size_t i = 0; i < static_cast<size_t>(kTokensPerBlock); ++i) {
        slots_[copy.to.value * 16 + i] = slots_[copy.from.value * 16 + i];
      }
    }
    std::map<BlockId, const Sequence*> writers;
    for (const PlannedSlice& slice : plan.slices) Compute(slice, writers);
    const std::vector<PlannedSlice> slices = plan.slices;
    scheduler_->Commit();
    for (const PlannedSlice& slice : slices) {
      if (!slice.samples) continue;
      const RequestId id = slice.sequence->request;
      std::vector<Sequence*> sampled{slice.sequence};
      if (slice.forks) {
        sampled.clear();
        for (const auto& choice : scheduler_->Choices(id)) sampled.push_back(choice.get());
      }
      for (Sequence* sequence : sampled) Sampled(id, *sequence);
    }
    scheduler_->CheckInvariants();
  }

  void CheckPlan(const BatchPlan& plan) {
    int64_t decode_rows = 0;
    int64_t prompt_rows = 0;
    int64_t scored_rows = 0;
    const Sequence* first = nullptr;
    for (const auto& [id, live] : live_) {
      for (const auto& choice : scheduler_->Choices(id)) {
        if (choice->phase != SequencePhase::kRunning) continue;
        if (first == nullptr || GoesFirst()(choice.get(), first)) first = choice.get();
      }
    }
    bool first_advances = first == nullptr;
    bool prompts_began = false;
    bool has_interactive_prompt = false;
    bool has_batch = false;
    for (const PlannedSlice& slice : plan.slices) {
      const bool decodes = slice.n_tokens == 1 && slice.samples;
      Expect(!(decodes && prompts_began), "decodes come first");
      prompts_began = prompts_began || !decodes;
      (decodes ? decode_rows : prompt_rows) += slice.n_tokens;
      const bool is_batch = slice.sequence->work_class == WorkClass::kBatch;
      has_batch = has_batch || is_batch;
      has_interactive_prompt = has_interactive_prompt || (!is_batch && slice.n_tokens > 1);
      if (slice.sequence->scores_prompt && !decodes) scored_rows += slice.n_tokens;
      first_advances = first_advances || slice.sequence == first;
    }
    Expect(first_advances, "the first in line does not advance");
    Expect(!has_batch || !has_interactive_prompt, "a batch row beside an interactive prompt");
    Expect(static_cast<int64_t>(plan.slices.size()) <= scheduler_options_.max_seqs, "max_seqs");
    Expect(decode_rows <= scheduler_options_.max_seqs, "decode rows");
    Expect(prompt_rows <= scheduler_options_.prefill_chunk_tokens, "prompt budget");
    Expect(scored_rows <= scheduler_options_.score_chunk_tokens, "score budget");
    Expect(plan.rows == decode_rows + prompt_rows, "rows");
  }

  // Stands for the model: reads what the slice sees before it, writes the slice. A slot also says
  // of which table it is.
  void Compute(const PlannedSlice& slice, std::map<BlockId, const Sequence*>& writers) {
    const Sequence& sequence = *slice.sequence;
    Expect(!live_.at(sequence.request).paused, "a paused sequence runs");
    Expect(slice.first_position == sequence.computed_len, "first position");
    const std::vector<uint64_t> hashes = PrefixHashes(sequence.tokens);
    const int64_t end = slice.first_position + slice.n_tokens;
    for (size_t t = 0; t < sequence.tables.size(); ++t) {
      const BlockTable& table = sequence.tables[t];
      const int64_t seen = scheduler_options_.windows[t].FirstVisible(slice.first_position);
      for (int64_t p = seen; p < slice.first_position; ++p) {
        Expect(Slot(table, p) == Mix(hashes[static_cast<size_t>(p)], t), "a foreign key was read");
      }
      for (int64_t p = slice.first_position; p < end; ++p) {
        const BlockId block = table[static_cast<size_t>(p / kTokensPerBlock)];
        Expect(pool_->references(block) == 1, "a shared block is written");
        const auto [where, is_new] = writers.try_emplace(block, &sequence);
        Expect(where->second == &sequence, "two sequences write one block");
        Slot(table, p) = Mix(hashes[static_cast<size_t>(p)], t);
      }
    }
  }

  // The next token depends on the request, the choice and all earlier tokens, like a seeded draw.
  void Sampled(RequestId id, Sequence& sequence) {
    Live& live = live_.at(id);
    const int64_t generated = sequence.length() - sequence.prompt_len;
    uint64_t h = Mix(id.value, static_cast<uint64_t>(sequence.choice));
    h = Mix(h, PrefixHashes(sequence.tokens).back());
    std::vector<TokenId>& completion = completions_[{id.value, sequence.choice}];
    if (generated < live.max_new) completion.push_back(Token(static_cast<int64_t>(h >> 20 & 1)));
    const bool ends = generated + 1 >= live.max_new || (h & 31) == 0;
    if (!ends) {
      scheduler_->Append(sequence, completion.back());
      return;
    }
    scheduler_->Finish(sequence);
    if (++live.ended == live.n) {
      ++terminal_events_[id.value];
      live_.erase(id);
      Expect(scheduler_->Choices(id).empty(), "a finished request is remembered");
    }
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
  SchedulerOptions scheduler_options_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<PrefixIndex> index_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<uint64_t> slots_;
  std::vector<TokenId> texts_[3];
  std::map<RequestId, Live> live_;
  std::map<uint64_t, int> terminal_events_;
  std::map<std::pair<uint64_t, int>, std::vector<TokenId>> completions_;
  uint64_t next_id_ = 0;
  int64_t steps_ = 0;
};

int64_t TraceCount() {
  const char* text = std::getenv("TANDEM_TEST_TRACES");
  return text != nullptr ? std::atoll(text) : 1500;
}

TEST(S5Bookkeeping, RandomTracesKeepEveryPromise) {
  int64_t steps = 0;
  int64_t preemptions = 0;
  int64_t hits = 0;
  for (int64_t seed = 1; seed <= TraceCount(); ++seed) {
    try {
      Trace trace(static_cast<uint64_t>(seed),
                  {.prefix_cache = seed % 4 != 0, .windows = seed % 2 == 0});
      trace.Run(200);
      steps += trace.steps();
      preemptions += trace.counters().preemptions;
      hits += trace.counters().prefix_hit_tokens;
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ": " << error.what();
    }
  }
  // The traces must reach the interesting states, or they prove nothing.
  EXPECT_GT(preemptions, steps / 100);
  EXPECT_GT(hits, steps / 10);
  RecordProperty("steps", std::to_string(steps));
}

// Generated tokens depend neither on caching nor on the amount of memory.
TEST(S5Bookkeeping, CachedAndUncachedTracesGenerateTheSameTokens) {
  int64_t compared = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    try {
      Trace cached(seed, {.prefix_cache = true, .windows = seed % 2 == 0});
      Trace uncached(seed, {.prefix_cache = false, .ample_blocks = true});
      cached.Run(150);
      uncached.Run(150);
      EXPECT_EQ(uncached.counters().preemptions, 0);
      for (const auto& [key, tokens] : cached.completions()) {
        const auto other = uncached.completions().find(key);
        if (other == uncached.completions().end()) continue;
        // After a cancellation, one of the two is a prefix of the other.
        const size_t common = std::min(tokens.size(), other->second.size());
        ASSERT_TRUE(std::equal(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(common),
                               other->second.begin()))
            << "seed " << seed;
        ++compared;
      }
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ": " << error.what();
    }
  }
  EXPECT_GT(compared, 1000);
}

}  // namespace
}  // namespace tandem::engine
