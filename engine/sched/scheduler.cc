#include "engine/sched/scheduler.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/out_of_memory.h"

namespace tandem::engine {
namespace {

// An adapter's name has no slash, so each pair of adapter and tenant has its own variant.
std::string PrefixVariant(const Scheduler::Request& request) {
  if (request.tenant == 0) return request.adapter;
  return request.adapter + "/" + std::to_string(request.tenant);
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, BlockPool& pool, PrefixIndex& index,
                     StatePool* states, PrefixArchive* archive)
    : options_(options), pool_(pool), index_(index), states_(states), archive_(archive) {
  TANDEM_CHECK(states_ == nullptr || archive_ == nullptr);
  TANDEM_CHECK(options_.max_seqs > 0);
  TANDEM_CHECK(options_.prefill_chunk_tokens > 0);
  TANDEM_CHECK(options_.score_chunk_tokens > 0);
  TANDEM_CHECK(options_.max_model_len > 0);
  TANDEM_CHECK(!options_.windows.empty());
  const int64_t needed =
      MostBlocksOfSequence(options_.windows, options_.max_model_len, options_.prefill_chunk_tokens);
  if (needed > pool_.capacity_blocks()) {
    throw Error(ErrorCode::kFailedPrecondition,
                "the KV cache holds " + std::to_string(pool_.capacity_blocks()) +
                    " blocks, but one sequence of " + std::to_string(options_.max_model_len) +
                    " tokens needs " + std::to_string(needed) +
                    ": raise --memory or lower --max-model-len");
  }
}

void Scheduler::Add(Request request) {
  TANDEM_CHECK(!request.prompt.empty());
  TANDEM_CHECK(static_cast<int64_t>(request.prompt.size()) <= options_.max_model_len);
  TANDEM_CHECK(request.n >= 1);
  // All allocations come first: a failure leaves the scheduler unchanged.
  ReserveLeftQueue();
  Group group;
  group.entry = {.request = request.id,
                 .client = request.client,
                 .priority = request.priority,
                 .arrival = arrivals_++,
                 .n = request.n};
  const std::string variant = PrefixVariant(request);
  group.choices.reserve(static_cast<size_t>(request.n));
  for (int choice = 0; choice < request.n; ++choice) {
    auto sequence = std::make_unique<Sequence>();
    sequence->request = request.id;
    sequence->choice = choice;
    sequence->work_class = request.work_class;
    sequence->arrival = group.entry.arrival;
    sequence->prompt_len = static_cast<int64_t>(request.prompt.size());
    sequence->prefix_variant = variant;
    sequence->tables.resize(options_.windows.size());
    sequence->uses_prefix_cache =
        options_.prefix_cache && !request.scores_prompt && !request.needs_every_row;
    sequence->scores_prompt = request.scores_prompt && choice == 0;
    sequence->phase = choice == 0 ? SequencePhase::kWaiting : SequencePhase::kAwaitingFork;
    group.choices.push_back(std::move(sequence));
  }
  Sequence* first = group.choices[0].get();
  const int64_t shared_blocks =
      std::min(request.shared_tokens, first->prompt_len) / kTokensPerBlock;
  if (states_ != nullptr && shared_blocks > 0) {
    first->snapshot_at.push_back(shared_blocks * kTokensPerBlock);
  }
  first->tokens = std::move(request.prompt);
  Line node;
  node.insert(first);
  group.place = node.extract(node.begin());
  const auto [where, is_new] = groups_.try_emplace(request.id, std::move(group));
  TANDEM_CHECK(is_new);
  if (!HasMemoryFor([&] { QueueOf(where->second).Queue(where->second.entry); })) {
    groups_.erase(where);
    throw std::bad_alloc();
  }
  ++queued_requests_;
}

// LeaveQueue must not fail, so its list has room for every queued request and the next one.
void Scheduler::ReserveLeftQueue() {
  const size_t needed = left_queue_.size() + static_cast<size_t>(queued_requests_) + 1;
  if (left_queue_.capacity() < needed) left_queue_.reserve(2 * needed);
}

std::vector<uint64_t> Scheduler::TakeLeftQueue() {
  std::vector<uint64_t> taken;
  taken.reserve(static_cast<size_t>(queued_requests_) + 1);
  taken.swap(left_queue_);
  return taken;
}

std::span<const std::unique_ptr<Sequence>> Scheduler::Choices(RequestId request) const {
  const auto found = groups_.find(request);
  if (found == groups_.end()) return {};
  return found->second.choices;
}

Scheduler::Group& Scheduler::GroupOf(const Sequence& sequence) {
  const auto found = groups_.find(sequence.request);
  TANDEM_CHECK(found != groups_.end());
  return found->second;
}

TurnTaking& Scheduler::QueueOf(const Group& group) {
  return queues_[static_cast<size_t>(group.choices[0]->work_class)];
}

int64_t Scheduler::num_waiting() const {
  size_t n = waiting_.size();
  for (const TurnTaking& queue : queues_) n += queue.size();
  return static_cast<int64_t>(n);
}

// Batch sequences stand at the end of a line.
int64_t Scheduler::NumBatch(const Line& line) {
  const auto first_interactive = std::find_if(
      line.rbegin(), line.rend(),
      [](const Sequence* sequence) { return sequence->work_class == WorkClass::kInteractive; });
  return std::distance(line.rbegin(), first_interactive);
}

int64_t Scheduler::num_running_batch() const { return NumBatch(running_); }

int64_t Scheduler::num_waiting_batch() const {
  const TurnTaking& queue = queues_[static_cast<size_t>(WorkClass::kBatch)];
  return NumBatch(waiting_) + static_cast<int64_t>(queue.size());
}

bool Scheduler::AwaitsFork(const Group& group) {
  return group.choices.size() > 1 && group.choices[1]->phase == SequencePhase::kAwaitingFork;
}

// ---- After the step

void Scheduler::Commit() {
  TANDEM_CHECK(!committed_);
  for (const PlannedSlice& slice : plan_.slices) {
    Sequence& sequence = *slice.sequence;
    Advance(sequence, slice.n_tokens - slice.n_draft);
    sequence.n_draft_computed = slice.n_draft;
    sequence.n_draft_accepted = 0;
    sequence.draft_tokens += slice.n_draft;
    counters_.draft_tokens += slice.n_draft;
    PublishSaves(slice);
    if (slice.forks) Fork(sequence);
  }
  plan_.saves.clear();
  committed_ = true;
}

// Counts the next tokens as computed.
void Scheduler::Advance(Sequence& sequence, int64_t n_tokens) {
  const int64_t computed_before = sequence.computed_len;
  sequence.computed_len += n_tokens;
  Publish(sequence, computed_before);
  ReleaseUnseen(sequence, computed_before);
}

// The prompt is complete: the further choices share its blocks and wait for places.
void Scheduler::Fork(Sequence& first) {
  Group& group = GroupOf(first);
  for (size_t i = 1; i < group.choices.size(); ++i) {
    Sequence& choice = *group.choices[i];
    TANDEM_CHECK(choice.phase == SequencePhase::kAwaitingFork);
    std::vector<BlockTable> tables = first.tables;
    choice.tokens = first.tokens;
    choice.computed_len = first.computed_len;
    choice.cached_len = first.cached_len;
    choice.looked_up = true;
    choice.tables.swap(tables);
    choice.published = first.published;
    for (const BlockTable& table : choice.tables) {
      for (const BlockId block : table) {
        if (block != kNoBlock) pool_.AddRef(block);
      }
    }
    choice.state = first.state;
    if (choice.state) states_->AddRef(*choice.state);
    holders_.insert(&choice);
    choice.phase = SequencePhase::kWaiting;
    waiting_.insert(&choice);
  }
}

void Scheduler::ForgetPrefixes() {
  TANDEM_CHECK(groups_.empty());
  for (int64_t i = 0; i < pool_.capacity_blocks(); ++i) {
    const BlockId block{static_cast<uint32_t>(i)};
    index_.Forget(block);
    pool_.SetCached(block, false);
  }
  if (states_ == nullptr) return;
  DropSaves();
  states_->ForgetAll();
}

Scheduler::Forgotten Scheduler::ForgetIdle(int64_t ages, int64_t most) {
  const std::vector<BlockId> idle = pool_.Idle(ages, most);
  for (const BlockId block : idle) {
    if (const auto name = index_.NameOf(block)) Archive(name->key, name->table, block);
    index_.Forget(block);
    pool_.GiveBack(block);
  }
  return {static_cast<int64_t>(idle.size()), pool_.RangesAround(idle)};
}

void Scheduler::Append(Sequence& sequence, TokenId token) {
  TANDEM_CHECK(sequence.live() && sequence.uncomputed() == 0);
  TANDEM_CHECK(sequence.length() < options_.max_model_len);
  sequence.tokens.push_back(token);
  const auto next = static_cast<size_t>(sequence.n_draft_accepted);
  if (sequence.n_draft_accepted < sequence.n_draft_computed && sequence.draft[next] == token) {
    ++sequence.n_draft_accepted;
    ++sequence.accepted_tokens;
    ++counters_.accepted_tokens;
    Advance(sequence, 1);
    return;
  }
  sequence.draft.clear();
  sequence.n_draft_computed = 0;
}

int64_t Scheduler::DraftRoom(const Sequence& sequence) const {
  if (options_.draft_rows == 0 || states_ != nullptr || num_running() == 0) return 0;
  // A share of the rows for each sequence. The last position has no token after it.
  return std::max<int64_t>(0, std::min(options_.draft_rows / num_running() - 1,
                                       options_.max_model_len - sequence.length() - 1));
}

void Scheduler::Propose(Sequence& sequence, std::vector<TokenId> draft) {
  TANDEM_CHECK(states_ == nullptr && sequence.n_draft_computed == 0);
  sequence.draft = std::move(draft);
}

void Scheduler::Finish(Sequence& sequence) {
  TANDEM_CHECK(sequence.live());
  Group& group = GroupOf(sequence);
  Leave(sequence);
  ReleaseBlocks(sequence);
  sequence.phase = SequencePhase::kFinished;
  for (const auto& choice : group.choices) {
    if (choice->live()) return;
  }
  groups_.erase(sequence.request);
}

bool Scheduler::Cancel(RequestId request) {
  const auto found = groups_.find(request);
  if (found == groups_.end()) return false;
  for (const auto& choice : found->second.choices) {
    if (!choice->live()) continue;
    Leave(*choice);
    ReleaseBlocks(*choice);
  }
  if (found->second.queued) LeaveQueue(found->second);
  groups_.erase(found);
  return true;
}

void Scheduler::SetPaused(RequestId request, bool paused) {
  const auto found = groups_.find(request);
  if (found == groups_.end() || found->second.paused == paused) return;
  Group& group = found->second;
  // The only step that may throw comes first.
  if (!paused && group.queued) QueueOf(group).Queue(group.entry);
  group.paused = paused;
  for (const auto& owned : group.choices) {
    Sequence& sequence = *owned;
    if (!sequence.live() || sequence.phase == SequencePhase::kAwaitingFork) continue;
    Move(sequence, paused ? SequencePhase::kPaused : SequencePhase::kWaiting);
  }
}

// Moves the sequence between lines by its set node, so nothing is allocated.
void Scheduler::Move(Sequence& sequence, SequencePhase phase) {
  Line::node_type node = Leave(sequence);
  sequence.phase = phase;
  if (Group& group = GroupOf(sequence); group.queued && phase == SequencePhase::kWaiting) {
    group.place = std::move(node);
    return;
  }
  Line& line = phase == SequencePhase::kRunning  ? running_
               : phase == SequencePhase::kPaused ? paused_
                                                 : waiting_;
  line.insert(std::move(node));
}

Scheduler::Line::node_type Scheduler::Leave(Sequence& sequence) {
  switch (sequence.phase) {
    case SequencePhase::kWaiting:
      if (Group& group = GroupOf(sequence); group.queued) {
        QueueOf(group).Leave(group.entry);
        return std::move(group.place);
      }
      return waiting_.extract(&sequence);
    case SequencePhase::kPaused:
      return paused_.extract(&sequence);
    case SequencePhase::kRunning: {
      Line::node_type node = running_.extract(&sequence);
      sequence.leader = nullptr;
      for (Sequence* other : running_) {
        if (other->leader != &sequence) continue;
        other->leader = nullptr;
        // The index has the blocks that the leader computed. Without memory for the look-up, the
        // follower computes them again.
        HasMemoryFor([&] { TakeCached(*other, MatchPrefix(*other)); });
      }
      return node;
    }
    case SequencePhase::kAwaitingFork:
    case SequencePhase::kFinished:
      break;
  }
  return {};
}

void Scheduler::CheckInvariants() const {
  size_t n_waiting = 0;
  size_t n_running = 0;
  size_t n_paused = 0;
  size_t n_holders = 0;
  size_t n_in_queue = 0;
  int64_t n_queued = 0;
  for (const auto& [id, group] : groups_) {
    bool any_live = false;
    n_queued += group.queued ? 1 : 0;
    for (const auto& owned : group.choices) {
      Sequence* sequence = owned.get();
      any_live = any_live || sequence->live();
      n_waiting += waiting_.count(sequence);
      n_running += running_.count(sequence);
      n_paused += paused_.count(sequence);
      n_holders += holders_.count(sequence);
      const bool waits = sequence->phase == SequencePhase::kWaiting;
      n_in_queue += waits && group.queued ? 1 : 0;
      TANDEM_CHECK(waiting_.count(sequence) == (waits && !group.queued));
      TANDEM_CHECK((sequence->turn == kNoTurn) == group.queued);
      TANDEM_CHECK(running_.count(sequence) == (sequence->phase == SequencePhase::kRunning));
      TANDEM_CHECK(paused_.count(sequence) == (sequence->phase == SequencePhase::kPaused));
      TANDEM_CHECK(holders_.count(sequence) == sequence->has_blocks());
      TANDEM_CHECK(sequence->leader == nullptr ||
                   (!sequence->has_blocks() && running_.count(sequence->leader) == 1));
    }
    TANDEM_CHECK(any_live);
  }
  TANDEM_CHECK(n_waiting == waiting_.size() && n_running == running_.size());
  TANDEM_CHECK(n_paused == paused_.size() && n_holders == holders_.size());
  TANDEM_CHECK(n_queued == queued_requests_);
  TANDEM_CHECK(static_cast<int64_t>(n_waiting + n_in_queue) == num_waiting());
  TANDEM_CHECK(num_running() <= options_.max_seqs);
  CheckBlocks();
  CheckStates();
}

}  // namespace tandem::engine
