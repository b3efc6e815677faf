#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/out_of_memory.h"
#include "engine/sched/scheduler.h"

// How a step is planned
//
//   1. Admit: the first in line gets a place. The pool must have blocks for all its tokens beyond
//      the needs of running prompts. There is no overtaking: if the first does not fit, all behind
//      it wait. Without a free place, a batch sequence gives its place to interactive work, and a
//      long prompt gives its place to a short one. Neither loses its blocks by that.
//   2. FollowLeaders: sequences that waited for another one's prefix take its blocks.
//   3. ShareBudget: distributes the step's prompt tokens. While an interactive prompt is computed,
//      batch sequences have no rows.
//   4. ReserveInLineOrder: reserves blocks in line order. A sequence without free blocks takes them
//      from the last in line, which is always later than itself and therefore not planned yet.
//
// A block is written only by a sequence that holds its only reference. Forked choices share the
// last, partial block of the prompt until one of them writes; the writer gets a copy first.

namespace tandem::engine {
namespace {

// Steps after the last interactive work in which the next interactive request may still be near.
constexpr int64_t kNearSteps = 1000;

int64_t CommonPrefix(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
  const size_t n = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first -
         a.begin();
}

}  // namespace

const BatchPlan& Scheduler::Plan() {
  // A plan that ran out of memory leaves its copies to the next plan, because their blocks are
  // already assigned.
  if (!std::exchange(is_planning_, true)) {
    plan_.copies.clear();
    plan_.state_copies.clear();
  }
  DropSaves();
  plan_.slices.clear();
  plan_.preempted.clear();
  plan_.rows = 0;
  plan_.awaits_archive = false;
  committed_ = false;
  archive_left_ = options_.archive_blocks;
  ++plans_;
  steps_without_interactive_ = HasInteractiveWork() ? 0 : steps_without_interactive_ + 1;
  // A round can end empty when the only running sequence gave way to an earlier one that had blocks
  // but no place (resumed after a pause). The next round gives the earlier one the place.
  do {
    Admit();
    FollowLeaders();
    ShareBudget();
    ReserveInLineOrder();
  } while (plan_.slices.empty() && !idle() && !plan_.awaits_archive);
  // As after a failure, the next plan keeps the copies.
  if (plan_.slices.empty() && plan_.awaits_archive) return plan_;
  std::stable_partition(plan_.slices.begin(), plan_.slices.end(),
                        [](const PlannedSlice& slice) { return slice.decodes(); });
  PlanSaves();
  is_planning_ = false;
  return plan_;
}

bool Scheduler::HasInteractiveWork() const {
  const Sequence* const next = NextInLine(options_.max_model_len);
  return (next != nullptr && next->work_class == WorkClass::kInteractive) ||
         (!running_.empty() && (*running_.begin())->work_class == WorkClass::kInteractive);
}

void Scheduler::ReserveInLineOrder() {
  const bool has_interactive_prompt =
      !shares_.empty() && shares_.front().sequence->work_class == WorkClass::kInteractive;
  size_t next_share = 0;
  for (Sequence* running : running_) {
    Sequence& sequence = *running;
    if (has_interactive_prompt && sequence.work_class == WorkClass::kBatch) break;
    int64_t n_tokens = sequence.leader == nullptr && sequence.uncomputed() == 1 ? 1 : 0;
    if (next_share < shares_.size() && shares_[next_share].sequence == &sequence) {
      n_tokens = shares_[next_share++].n_tokens;
    }
    if (n_tokens == 0) continue;
    const int64_t n_draft = DraftThatFits(sequence);
    n_tokens += n_draft;
    // If this sequence gives way, none behind it holds blocks. (Reserving erases only sequences
    // behind this one from running_, so the loop stays valid.)
    if (!Reserve(sequence, n_tokens)) break;
    PlannedSlice slice;
    slice.sequence = &sequence;
    slice.first_position = sequence.computed_len;
    slice.n_tokens = n_tokens;
    slice.n_draft = n_draft;
    slice.samples = n_tokens - n_draft == sequence.uncomputed();
    slice.forks = slice.samples && AwaitsFork(GroupOf(sequence));
    plan_.slices.push_back(slice);
    plan_.rows += n_tokens;
  }
}

// Guesses that the sequence computes in this step. Beside prompts the step is bound by arithmetic,
// so every row costs. Guesses take free blocks only; each running sequence keeps one of each table.
int64_t Scheduler::DraftThatFits(const Sequence& sequence) const {
  if (sequence.draft.empty() || !shares_.empty() || sequence.uncomputed() != 1) return 0;
  int64_t n = std::min(static_cast<int64_t>(sequence.draft.size()), DraftRoom(sequence));
  const auto n_tables = static_cast<int64_t>(sequence.tables.size());
  const int64_t spare = std::max<int64_t>(0, pool_.num_free() / n_tables - num_running());
  const auto held = static_cast<int64_t>(sequence.blocks().size());
  n = std::min(n, (held + spare) * kTokensPerBlock - sequence.computed_len - 1);
  return std::max<int64_t>(0, n);
}

// The first in line with at most `longest` tokens to compute. Within a class, sequences of requests
// that have had a place precede all queued requests.
Sequence* Scheduler::NextInLine(int64_t longest) const {
  auto waiting = waiting_.begin();
  for (size_t i = 0; i < queues_.size(); ++i) {
    for (; waiting != waiting_.end() && (*waiting)->work_class == static_cast<WorkClass>(i);
         ++waiting) {
      if ((*waiting)->uncomputed() <= longest) return *waiting;
    }
    const std::optional<RequestId> next = queues_[i].Next();
    if (!next) continue;
    Sequence* const first = groups_.at(*next).choices[0].get();
    if (first->uncomputed() <= longest) return first;
  }
  return nullptr;
}

// Gives places to the first in line while they fit.
void Scheduler::Admit() {
  for (;;) {
    Sequence* next = NextInLine(options_.max_model_len);
    if (next == nullptr) return;
    Sequence* yielding = nullptr;
    if (num_running() >= options_.max_seqs) {
      yielding = PlaceFor(*next);
      if (yielding == nullptr && IsLong(*next)) {
        next = NextInLine(options_.prefill_chunk_tokens);
        if (next != nullptr) yielding = PlaceFor(*next);
      }
      if (yielding == nullptr) return;
    }
    Sequence& sequence = *next;
    plan_.awaits_archive = !TakeFromArchive(sequence);
    if (plan_.awaits_archive) return;
    Prefix matched;
    if (!sequence.has_blocks() && sequence.uses_prefix_cache) matched = MatchPrefix(sequence);
    if (!MakeRoom(sequence, matched)) return;
    // Making room may have taken the place already.
    if (num_running() >= options_.max_seqs) Move(*yielding, SequencePhase::kWaiting);
    Start(sequence, matched);
  }
}

bool Scheduler::IsLong(const Sequence& sequence) const {
  return sequence.uncomputed() > options_.prefill_chunk_tokens;
}

// The running sequence that gives its place to `next`: the last batch sequence to interactive work,
// or the last long prompt to a short one. The first prompt in line keeps its place, so each long
// prompt advances in its turn. A newcomer keeps its place for one step.
Sequence* Scheduler::PlaceFor(const Sequence& next) const {
  Sequence* last_long = nullptr;
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    Sequence& sequence = **it;
    if (sequence.work_class > next.work_class) return &sequence;
    if (sequence.work_class < next.work_class || IsLong(next)) break;
    if (last_long != nullptr && sequence.uncomputed() > 1) return last_long;
    if (IsLong(sequence) && sequence.placed_at < plans_) last_long = &sequence;
  }
  return nullptr;
}

// Whether the pool has blocks for all tokens of the first in line. Takes blocks as Victim says, and
// from any sequence when none runs (running ones will release theirs in time). One spare block of
// each table keeps the new sequence from being preempted at once by its neighbours' next blocks.
bool Scheduler::MakeRoom(const Sequence& sequence, const Prefix& matched) {
  const auto n_tables = static_cast<int64_t>(options_.windows.size());
  for (;;) {
    // A matched block with references costs nothing. An unreferenced one leaves the free list when
    // revived, as a new one would. Each victim may change these counts.
    const int64_t computed =
        sequence.has_blocks() ? sequence.computed_len : matched.n_blocks() * kTokensPerBlock;
    int64_t need = BlocksMissing(sequence, computed);
    for (const BlockTable& table : matched.tables) {
      need -= std::count_if(table.begin(), table.end(), [&](BlockId block) {
        return block != kNoBlock && pool_.references(block) > 0;
      });
    }
    const int64_t spare = pool_.num_free() - BlocksPromised(sequence.work_class);
    if (spare >= need + (running_.empty() ? 0 : n_tables)) return true;
    Sequence* victim = Victim(sequence);
    if (victim == nullptr && running_.empty()) {
      const auto last = std::find_if(holders_.rbegin(), holders_.rend(),
                                     [&](const Sequence* holder) { return holder != &sequence; });
      if (last != holders_.rend()) victim = *last;
    }
    if (victim == nullptr) return false;
    Preempt(*victim);
  }
}

// The holder that gives its blocks to `sequence` before the last in line has to. It is the last
// batch sequence for interactive work, otherwise the last paused one of the same class.
Sequence* Scheduler::Victim(const Sequence& sequence) const {
  for (auto it = holders_.rbegin(); it != holders_.rend(); ++it) {
    if ((*it)->work_class > sequence.work_class) return *it;
    if ((*it)->work_class < sequence.work_class) return nullptr;
    if (*it != &sequence && (*it)->phase == SequencePhase::kPaused) return *it;
  }
  return nullptr;
}

void Scheduler::Start(Sequence& sequence, const Prefix& matched) {
  Group& group = GroupOf(sequence);
  const auto set_turn = [&](uint64_t turn) {
    for (const auto& choice : group.choices) choice->turn = turn;
  };
  // The turn orders the holders of blocks, so set it before the blocks.
  if (group.queued) set_turn(turns_);
  const bool has_memory = HasMemoryFor([&] {
    if (sequence.has_blocks()) return;
    if (sequence.uses_prefix_cache) {
      FindLeader(sequence, matched.n_blocks() * kTokensPerBlock);
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
  sequence.placed_at = plans_;
  running_.insert(std::move(place));
}

void Scheduler::LeaveQueue(Group& group) {
  group.queued = false;
  --queued_requests_;
  left_queue_.push_back(group.entry.client);
}

// Requests with the same long system prompt that arrive together compute it once. Only a sequence
// earlier in line may lead, so the first in line waits for no other. Each leader costs a step, so a
// short prompt follows no follower.
void Scheduler::FindLeader(Sequence& sequence, int64_t matched_tokens) {
  int64_t best = matched_tokens;
  const bool is_short = sequence.length() - matched_tokens <= options_.prefill_chunk_tokens;
  for (Sequence* other : running_) {
    if (!GoesFirst()(other, &sequence)) break;
    if (other->uncomputed() <= 1 || other->prefix_variant != sequence.prefix_variant) continue;
    if (is_short && other->leader != nullptr) continue;
    const int64_t common =
        std::min(CommonPrefix(other->tokens, sequence.tokens), sequence.length() - 1) /
        kTokensPerBlock * kTokensPerBlock;
    if (common > best && common > other->computed_len) {
      best = common;
      sequence.leader = other;
      sequence.shared_len = common;
    }
  }
  // The follower needs the state there.
  if (states_ != nullptr && sequence.leader != nullptr) {
    sequence.leader->snapshot_at.push_back(sequence.shared_len);
  }
}

void Scheduler::FollowLeaders() {
  for (Sequence* sequence : running_) {
    if (sequence->leader == nullptr) continue;
    if (sequence->leader->computed_len < sequence->shared_len) continue;
    sequence->leader = nullptr;
    TakeCached(*sequence, MatchPrefix(*sequence));
  }
}

// Distributes this step's prompt tokens into shares_.
void Scheduler::ShareBudget() {
  CollectPrompts();
  if (shares_.empty()) return;
  int64_t budget = PromptBudget();
  int64_t score_budget = options_.score_chunk_tokens;
  const auto give = [&](Share& share, int64_t at_most, int64_t scores_at_most) {
    const Sequence& sequence = *share.sequence;
    int64_t n = std::min({at_most, budget, sequence.uncomputed() - share.n_tokens});
    if (sequence.scores_prompt) n = std::min({n, score_budget, scores_at_most});
    share.n_tokens += n;
    budget -= n;
    if (sequence.scores_prompt) score_budget -= n;
  };

  give(shares_.front(), (budget + 1) / 2, (score_budget + 1) / 2);
  std::stable_sort(wants_.begin(), wants_.end(), [](const Want& a, const Want& b) {
    return std::pair(a.is_long, a.rank) < std::pair(b.is_long, b.rank);
  });
  for (const Want& want : wants_) {
    if (budget == 0) break;
    const auto share = std::lower_bound(
        shares_.begin(), shares_.end(), want.sequence,
        [](const Share& s, const Sequence* sequence) { return GoesFirst()(s.sequence, sequence); });
    if (share == shares_.end() || share->sequence != want.sequence) continue;
    give(*share, std::max<int64_t>(0, want.n_tokens - share->n_tokens), score_budget);
  }
  give(shares_.front(), budget, score_budget);
}

// REQUIRES: there are shares.
int64_t Scheduler::PromptBudget() const {
  const bool is_batch = shares_.front().sequence->work_class == WorkClass::kBatch;
  if (!is_batch || steps_without_interactive_ >= kNearSteps) return options_.prefill_chunk_tokens;
  const int64_t n_decodes = num_running_batch() - static_cast<int64_t>(shares_.size());
  const int64_t least = std::max<int64_t>(1, options_.batch_chunk_tokens / 4);
  return std::min(options_.prefill_chunk_tokens,
                  std::max(least, options_.batch_chunk_tokens - n_decodes));
}

// Fills shares_ with the prompts of the first class that has any, and wants_ with the tokens that
// they would like to compute.
void Scheduler::CollectPrompts() {
  shares_.clear();
  wants_.clear();
  for (Sequence* sequence : running_) {
    if (!shares_.empty() && sequence->work_class != shares_.front().sequence->work_class) return;
    if (sequence->leader != nullptr) {
      wants_.push_back(WantOfFollower(*sequence));
    } else if (sequence->uncomputed() > 1) {
      const int64_t left = sequence->uncomputed();
      // ShareBudget serves the first in line first and last.
      if (!shares_.empty()) {
        wants_.push_back({sequence, left, sequence->is_long, left + Age(*sequence)});
      }
      shares_.push_back({sequence, 0});
    }
  }
}

// A leader computes its follower's tokens as if it were the follower. Otherwise a short prompt
// would wait for all of a long one that begins like it.
Scheduler::Want Scheduler::WantOfFollower(const Sequence& follower) const {
  const Sequence* waits = &follower;
  while (waits->leader->leader != nullptr) waits = waits->leader;
  Sequence* const leader = waits->leader;
  const int64_t left = follower.length() - leader->computed_len;
  return {leader, waits->shared_len - leader->computed_len, left > options_.prefill_chunk_tokens,
          left + Age(follower)};
}

// Orders short prompts with their remaining tokens: a later one may overtake for eight steps.
int64_t Scheduler::Age(const Sequence& sequence) const {
  return sequence.placed_at * std::max<int64_t>(1, options_.prefill_chunk_tokens / 8);
}

// Takes the blocks of a Victim, otherwise of the last in line. False when that was `sequence`.
bool Scheduler::PreemptFor(Sequence& sequence) {
  if (Sequence* const victim = Victim(sequence)) {
    Preempt(*victim);
    return true;
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

}  // namespace tandem::engine
