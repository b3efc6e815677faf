#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/out_of_memory.h"
#include "engine/sched/scheduler.h"

// How a step is planned
//
//   1. Admit: the first in line gets a place, as long as a place is free. The pool must also have
//      blocks for all its tokens beyond the needs of running prompts. There is no overtaking: if
//      the first does not fit, all behind it wait.
//   2. FollowLeaders: sequences that waited for another one's prefix take its blocks.
//   3. ShareBudget: distributes the step's prompt tokens.
//   4. ReserveInLineOrder: reserves blocks in line order. A sequence without free blocks takes them
//      from the last in line, which is always later than itself and therefore not planned yet.
//
// A block is written only by a sequence that holds its only reference. Forked choices share the
// last, partial block of the prompt until one of them writes; the writer gets a copy first.

namespace tandem::engine {
namespace {

int64_t CommonPrefix(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
  const size_t n = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first -
         a.begin();
}

}  // namespace

const BatchPlan& Scheduler::Plan() {
  // A plan that ran out of memory leaves its copies to the next plan, because their blocks are
  // already assigned.
  if (!std::exchange(is_planning_, true)) plan_.copies.clear();
  plan_.slices.clear();
  plan_.preempted.clear();
  plan_.rows = 0;
  committed_ = false;
  // A round can end empty when the only running sequence gave way to an earlier one that had blocks
  // but no place (resumed after a pause). The next round gives the earlier one the place.
  do {
    Admit();
    FollowLeaders();
    ShareBudget();
    ReserveInLineOrder();
  } while (plan_.slices.empty() && !idle());
  std::stable_partition(plan_.slices.begin(), plan_.slices.end(),
                        [](const PlannedSlice& slice) { return slice.decodes(); });
  is_planning_ = false;
  return plan_;
}

void Scheduler::ReserveInLineOrder() {
  size_t next_share = 0;
  for (Sequence* running : running_) {
    Sequence& sequence = *running;
    int64_t n_tokens = sequence.leader == nullptr && sequence.uncomputed() == 1 ? 1 : 0;
    if (next_share < shares_.size() && shares_[next_share].sequence == &sequence) {
      n_tokens = shares_[next_share++].n_tokens;
    }
    if (n_tokens == 0) continue;
    // If this sequence gives way, none behind it holds blocks. (Reserving erases only sequences
    // behind this one from running_, so the loop stays valid.)
    if (!Reserve(sequence, n_tokens)) break;
    PlannedSlice slice;
    slice.sequence = &sequence;
    slice.first_position = sequence.computed_len;
    slice.n_tokens = n_tokens;
    slice.samples = n_tokens == sequence.uncomputed();
    slice.forks = slice.samples && AwaitsFork(GroupOf(sequence));
    plan_.slices.push_back(slice);
    plan_.rows += n_tokens;
  }
}

TurnTaking& Scheduler::QueueOf(const Group& group) {
  return queues_[static_cast<size_t>(group.choices[0]->work_class)];
}

int64_t Scheduler::num_waiting() const {
  size_t n = waiting_.size();
  for (const TurnTaking& queue : queues_) n += queue.size();
  return static_cast<int64_t>(n);
}

// Within a class, sequences of requests that have had a place precede all queued requests.
Sequence* Scheduler::NextInLine() const {
  Sequence* const waiting = waiting_.empty() ? nullptr : *waiting_.begin();
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (waiting != nullptr && waiting->work_class == static_cast<WorkClass>(i)) return waiting;
    if (const std::optional<RequestId> next = queues_[i].Next()) {
      return groups_.at(*next).choices[0].get();
    }
  }
  return nullptr;
}

// Gives places to the first in line while they fit.
void Scheduler::Admit() {
  while (num_running() < options_.max_seqs) {
    Sequence* const next = NextInLine();
    if (next == nullptr) return;
    Sequence& sequence = *next;
    std::vector<BlockId> matched;
    if (sequence.blocks.empty() && sequence.uses_prefix_cache) {
      matched = index_.Match(sequence.tokens, sequence.prefix_variant);
    }
    if (!MakeRoom(sequence, matched)) return;
    Start(sequence, matched);
  }
}

// Whether the pool has blocks for all tokens of the first in line. Takes blocks from paused
// sequences, and from waiting ones when none runs (running ones will release theirs in time). One
// spare block keeps the new sequence from being preempted at once by its neighbours' next block.
bool Scheduler::MakeRoom(const Sequence& sequence, std::span<const BlockId> matched) {
  for (;;) {
    // A matched block with references costs nothing. An unreferenced one leaves the free list when
    // revived, as a new one would. Each victim may change these counts.
    int64_t need = BlocksMissing(sequence);
    for (const BlockId block : matched) need -= pool_.references(block) > 0 ? 1 : 0;
    const int64_t spare = pool_.num_free() - BlocksPromised();
    if (spare >= need + (running_.empty() ? 0 : 1)) return true;
    Sequence* victim = nullptr;
    for (auto it = holders_.rbegin(); it != holders_.rend() && victim == nullptr; ++it) {
      if (*it != &sequence && (*it)->phase == SequencePhase::kPaused) victim = *it;
    }
    if (victim == nullptr && running_.empty() && !holders_.empty() &&
        *holders_.rbegin() != &sequence) {
      victim = *holders_.rbegin();
    }
    if (victim == nullptr) return false;
    Preempt(*victim);
  }
}

void Scheduler::Start(Sequence& sequence, std::span<const BlockId> matched) {
  Group& group = GroupOf(sequence);
  const auto set_turn = [&](uint64_t turn) {
    for (const auto& choice : group.choices) choice->turn = turn;
  };
  // The turn orders the holders of blocks, so set it before the blocks.
  if (group.queued) set_turn(turns_);
  const bool has_memory = HasMemoryFor([&] {
    if (!sequence.blocks.empty()) return;
    if (sequence.uses_prefix_cache) {
      FindLeader(sequence, static_cast<int64_t>(matched.size()) * kTokensPerBlock);
    }
    if (sequence.leader == nullptr) TakeCached(sequence, matched);
  });
  if (!has_memory) {
    if (group.queued) set_turn(kNoTurn);
    throw std::bad_alloc();
  }
  // The code below does not allocate.
  Line::node_type place;
  if (group.queued) {
    LeaveQueue(group);
    QueueOf(group).Admit();
    ++turns_;
    place = std::move(group.place);
  } else {
    place = waiting_.extract(&sequence);
  }
  sequence.phase = SequencePhase::kRunning;
  running_.insert(std::move(place));
}

void Scheduler::LeaveQueue(Group& group) {
  group.queued = false;
  --queued_requests_;
  left_queue_.push_back(group.entry.client);
}

// Requests with the same long system prompt that arrive together compute it once. Only a sequence
// earlier in line may lead, so the first in line waits for no other.
void Scheduler::FindLeader(Sequence& sequence, int64_t matched_tokens) {
  int64_t best = matched_tokens;
  for (Sequence* other : running_) {
    if (!GoesFirst()(other, &sequence)) break;
    if (other->uncomputed() <= 1 || other->prefix_variant != sequence.prefix_variant) continue;
    const int64_t common =
        std::min(CommonPrefix(other->tokens, sequence.tokens), sequence.length() - 1) /
        kTokensPerBlock * kTokensPerBlock;
    if (common > best && common > other->computed_len) {
      best = common;
      sequence.leader = other;
      sequence.shared_len = common;
    }
  }
}

void Scheduler::FollowLeaders() {
  for (Sequence* sequence : running_) {
    if (sequence->leader == nullptr) continue;
    if (sequence->leader->computed_len < sequence->shared_len) continue;
    sequence->leader = nullptr;
    TakeCached(*sequence, index_.Match(sequence->tokens, sequence->prefix_variant));
  }
}

// REQUIRES: the sequence holds no blocks. Changes nothing when memory runs out.
void Scheduler::TakeCached(Sequence& sequence, std::span<const BlockId> matched) {
  sequence.blocks.reserve(matched.size());
  if (!matched.empty()) holders_.insert(&sequence);
  sequence.blocks.assign(matched.begin(), matched.end());
  for (const BlockId block : matched) pool_.AddRef(block);
  sequence.computed_len = static_cast<int64_t>(matched.size()) * kTokensPerBlock;
  TANDEM_CHECK(sequence.computed_len < sequence.length());
  if (sequence.uses_prefix_cache && !sequence.looked_up) {
    sequence.looked_up = true;
    sequence.cached_len = sequence.computed_len;
    counters_.prefix_query_tokens += sequence.length();
    counters_.prefix_hit_tokens += sequence.computed_len;
  }
}

// Distributes this step's prompt tokens into shares_.
void Scheduler::ShareBudget() {
  shares_.clear();
  by_remaining_.clear();
  for (Sequence* sequence : running_) {
    if (sequence->leader != nullptr || sequence->uncomputed() <= 1) continue;
    shares_.push_back({sequence, 0});
    by_remaining_.push_back(sequence);
  }
  if (shares_.empty()) return;

  int64_t budget = options_.prefill_chunk_tokens;
  int64_t score_budget = options_.score_chunk_tokens;
  const auto give = [&](Share& share, int64_t at_most) {
    const Sequence& sequence = *share.sequence;
    int64_t n = std::min({at_most, budget, sequence.uncomputed() - share.n_tokens});
    if (sequence.scores_prompt) n = std::min(n, score_budget);
    share.n_tokens += n;
    budget -= n;
    if (sequence.scores_prompt) score_budget -= n;
  };

  give(shares_.front(), (budget + 1) / 2);
  std::stable_sort(
      by_remaining_.begin() + 1, by_remaining_.end(),
      [](const Sequence* a, const Sequence* b) { return a->uncomputed() < b->uncomputed(); });
  for (size_t i = 1; i < by_remaining_.size() && budget > 0; ++i) {
    const auto share = std::lower_bound(
        shares_.begin(), shares_.end(), by_remaining_[i],
        [](const Share& s, const Sequence* sequence) { return GoesFirst()(s.sequence, sequence); });
    give(*share, budget);
  }
  give(shares_.front(), budget);
}

// Gives the sequence exclusive blocks for its next `n_tokens` positions. Returns false when it was
// the last in line and was preempted.
bool Scheduler::Reserve(Sequence& sequence, int64_t n_tokens) {
  const auto write_block = static_cast<size_t>(sequence.computed_len / kTokensPerBlock);
  while (write_block < sequence.blocks.size() &&
         pool_.references(sequence.blocks[write_block]) > 1) {
    plan_.copies.emplace_back();  // before taking a block, which a failure must not lose
    if (const std::optional<BlockId> copy = TryAllocate()) {
      const BlockId shared = sequence.blocks[write_block];
      plan_.copies.back() = {shared, *copy};
      pool_.Release(shared);
      sequence.blocks[write_block] = *copy;
      continue;
    }
    plan_.copies.pop_back();
    if (!PreemptFor(sequence)) return false;
  }
  const auto n_blocks = static_cast<size_t>(BlocksFor(sequence.computed_len + n_tokens));
  while (sequence.blocks.size() < n_blocks) {
    sequence.blocks.reserve(n_blocks);  // so that push_back does not throw
    const bool is_first = sequence.blocks.empty();
    if (is_first) holders_.insert(&sequence);
    if (const std::optional<BlockId> block = TryAllocate()) {
      sequence.blocks.push_back(*block);
      continue;
    }
    if (is_first) holders_.erase(&sequence);
    if (!PreemptFor(sequence)) return false;
  }
  return true;
}

std::optional<BlockId> Scheduler::TryAllocate() {
  const std::optional<BlockPool::Allocation> allocation = pool_.TryAllocate();
  if (!allocation) return std::nullopt;
  if (allocation->evicted_cached) index_.Forget(allocation->block);
  return allocation->block;
}

// Takes the blocks of a paused sequence, otherwise of the last in line. False when that was
// `sequence`.
bool Scheduler::PreemptFor(Sequence& sequence) {
  for (auto it = holders_.rbegin(); it != holders_.rend(); ++it) {
    if ((*it)->phase == SequencePhase::kPaused) {
      Preempt(**it);
      return true;
    }
  }
  TANDEM_CHECK(!holders_.empty());
  Sequence& last = **holders_.rbegin();
  // A sequence without blocks that is later than every holder gives way, too.
  if (GoesFirst()(&last, &sequence)) {
    Preempt(sequence);
    return false;
  }
  const bool other = &last != &sequence;
  Preempt(last);
  return other;
}

void Scheduler::Preempt(Sequence& victim) {
  plan_.preempted.push_back(&victim);  // the only line that may throw
  ReleaseBlocks(victim);
  if (victim.phase == SequencePhase::kRunning) Move(victim, SequencePhase::kWaiting);
  ++counters_.preemptions;
}

// ---- Counting

// Blocks that the sequence still needs before all its present tokens are computed.
int64_t Scheduler::BlocksMissing(const Sequence& sequence) const {
  const auto held = static_cast<int64_t>(sequence.blocks.size());
  const auto write_block = static_cast<size_t>(sequence.computed_len / kTokensPerBlock);
  const bool copies =
      write_block < sequence.blocks.size() && pool_.references(sequence.blocks[write_block]) > 1;
  return BlocksFor(sequence.length()) - held + (copies ? 1 : 0);
}

int64_t Scheduler::BlocksPromised() const {
  int64_t promised = 0;
  for (const Sequence* sequence : running_) promised += BlocksMissing(*sequence);
  return promised;
}

}  // namespace tandem::engine
