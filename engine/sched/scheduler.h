#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/api/work_class.h"
#include "engine/base/ids.h"
#include "engine/kv/block_pool.h"
#include "engine/kv/kv_window.h"
#include "engine/kv/prefix_archive.h"
#include "engine/kv/prefix_index.h"
#include "engine/kv/state_pool.h"
#include "engine/sched/batch_plan.h"
#include "engine/sched/sequence.h"
#include "engine/sched/turn_taking.h"

namespace tandem::engine {

struct SchedulerOptions {
  int64_t max_seqs = 64;               // sequences with a place in the batch
  int64_t prefill_chunk_tokens = 256;  // prompt tokens per step, all sequences together
  int64_t score_chunk_tokens = 64;     // of those, for prompts that score every row
  // Rows of batch requests in one step while interactive requests come and go, because one that
  // arrives waits for the step in progress. Decodes count but are not refused; at least a quarter
  // is left to prompts.
  int64_t batch_chunk_tokens = 32;
  // Rows of a step without prompts up to which guesses are computed; 0: none are.
  int64_t draft_rows = 0;
  int64_t max_model_len = 0;  // one sequence of this length must fit the pool
  bool prefix_cache = true;
  // Blocks that one plan takes from the archive, so that neither a step nor a command waits long
  // for the disk.
  int64_t archive_blocks = 64;
  int64_t snapshot_tokens = 256;  // distance of regular snapshots of states; in full blocks
  // The tables of blocks of a sequence, as in KvCache::Shape and PrefixIndex. A table with a window
  // gives its blocks back when no later token sees them.
  std::vector<KvWindow> windows = {KvWindow{}};
};

// Decides the tokens of the next step and the KV blocks that hold them. Pure logic: no threads, no
// tensors, no clock. Engine thread only.
//
// Continuous batching: every running sequence decodes one token per step, and prompt chunks share
// the step. Half of the prompt budget goes to the first in line, so every request makes progress.
// The other half goes to short prompts, which need at most one chunk. So a short prompt gets its
// first token while long ones are computed. When blocks run out, the last in line loses its blocks
// and is recomputed later; its generated tokens are then prefilled, too. The first in line
// therefore always advances, and no interactive request starves.
//
// Interactive requests precede batch requests in every line. Batch sequences give their places and
// blocks to interactive ones, and have no rows in a step with an interactive prompt.
//
// Within a class waiting clients take turns; a client's own requests go by priority, then by
// arrival (TurnTaking). A client with a thousand requests delays another client's single request by
// one request, with any priority. A request with a place keeps its position in line to its end.
//
// One step: Plan -> (the loop computes) -> Commit -> Append or Finish for each sampled choice.
class Scheduler {
 public:
  struct Request {
    RequestId id;
    std::vector<TokenId> prompt;  // not empty; max_model_len tokens only if nothing is appended
    int n = 1;                    // choices
    int priority = 0;             // lower first, among requests of one client and class
    WorkClass work_class = WorkClass::kInteractive;
    uint64_t client = 0;           // clients take turns
    bool scores_prompt = false;    // needs every row, and their logits
    bool needs_every_row = false;  // skips the prefix-cache look-up
    std::string adapter = {};      // names what its keys and values depend on besides tokens
    uint64_t tenant = 0;           // cached prefixes are shared within one tenant and adapter
    int64_t shared_tokens = 0;     // first tokens that other prompts probably share; 0: unknown
  };

  // Borrows the pools, the index and the archive for its lifetime. `states`: null for models
  // without state. `archive`: null for none; its blocks join the index when a prompt needs them.
  // REQUIRES: no archive beside states, because it keeps no snapshots.
  // Throws kFailedPrecondition when the pool cannot hold one sequence of max_model_len tokens.
  Scheduler(const SchedulerOptions& options, BlockPool& pool, PrefixIndex& index,
            StatePool* states = nullptr, PrefixArchive* archive = nullptr);

  // Queues a request. Its sequences live until the last one is finished or the request is
  // cancelled. Throws std::bad_alloc and then changes nothing.
  void Add(Request request);

  // Choices of a request, by number; empty when the request is unknown.
  std::span<const std::unique_ptr<Sequence>> Choices(RequestId request) const;

  // Plans the next step. The result is valid until the next call of any method except Commit,
  // Append and Finish. A plan without slices means that there is nothing to do now, unless it
  // awaits_archive. After
  // std::bad_alloc every sequence is in a valid phase: plan again, or cancel requests.
  const BatchPlan& Plan();

  // Call after the rows of the last plan are computed. Advances its sequences, publishes full
  // blocks in the prefix index, and starts the further choices of requests whose prompt is
  // complete.
  void Commit();

  // Adds a sampled token to the sequence; not for a token that ends it. When the token confirms a
  // guess that the last step computed, the sequence has nothing uncomputed afterwards: its next
  // logits are known.
  void Append(Sequence& sequence, TokenId token);
  // How many tokens a guess of this sequence's next ones may have; 0: none would be computed.
  int64_t DraftRoom(const Sequence& sequence) const;
  // Sets the guess. The next step computes as much of it as fits. REQUIRES: no recurrent state.
  void Propose(Sequence& sequence, std::vector<TokenId> draft);
  // Ends the sequence and releases its blocks. The last sequence also ends the request and all of
  // its Sequence references.
  void Finish(Sequence& sequence);
  // Ends the request in any phase. False when it is unknown (already over). Never fails.
  bool Cancel(RequestId request);
  // A paused request yields its place until resumed. Idempotent; unknown requests are ignored.
  // Resuming throws std::bad_alloc and then changes nothing.
  void SetPaused(RequestId request, bool paused);

  // Forgets every cached prefix. REQUIRES: there are no requests.
  void ForgetPrefixes();

  // Forgets prefixes in free blocks that were released at least `ages` intervals ago
  // (BlockPool::Age), in at most `most` blocks. Returns ranges of free blocks whose bytes nobody
  // needs. Throws std::bad_alloc; their memory then stays until they are used again.
  struct Forgotten {
    int64_t n_blocks = 0;
    std::vector<BlockPool::Range> ranges;
  };
  Forgotten ForgetIdle(int64_t ages, int64_t most);

  bool idle() const { return running_.empty() && num_waiting() == 0; }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const;
  int64_t num_running_batch() const;
  int64_t num_waiting_batch() const;
  // Requests that have not had a place yet.
  int64_t num_queued_requests() const { return queued_requests_; }
  // The client of every request that got a place, or ended without one, since the last call. Throws
  // std::bad_alloc and then takes nothing.
  std::vector<uint64_t> TakeLeftQueue();
  size_t num_left_queue() const { return left_queue_.size(); }
  int64_t num_requests() const { return static_cast<int64_t>(groups_.size()); }

  struct Counters {
    int64_t preemptions = 0;
    int64_t archive_blocks = 0;  // taken from the archive
    int64_t prefix_query_tokens = 0;
    int64_t prefix_hit_tokens = 0;
    int64_t snapshots = 0;        // of states, made
    int64_t draft_tokens = 0;     // guesses that were computed
    int64_t accepted_tokens = 0;  // of those, confirmed
  };
  const Counters& counters() const { return counters_; }

  // Checks that every block's references equal its holders and that every set agrees with the
  // phases. Throws kInternal. O(blocks): for tests and debug builds.
  void CheckInvariants() const;

 private:
  using Line = std::set<Sequence*, GoesFirst>;
  // Prompt tokens that a sequence would like to compute in this step, for itself or for a follower.
  struct Want {
    Sequence* sequence;
    int64_t n_tokens;
    bool is_long;  // short prompts go first
    int64_t rank;  // then the lower rank
  };
  // A cached beginning of a sequence.
  struct Prefix {
    std::vector<Sha256Digest> keys = {};  // of its full blocks
    std::vector<BlockTable> tables = {};
    std::optional<StateId> state = {};  // after the blocks' tokens
    int64_t branch = 0;                 // tokens with keys but without a snapshot; 0: none

    int64_t n_blocks() const { return static_cast<int64_t>(keys.size()); }
  };
  struct Group {
    std::vector<std::unique_ptr<Sequence>> choices;
    bool paused = false;
    bool queued = true;  // has not had a place yet
    TurnTaking::Entry entry;
    Line::node_type place;  // while queued and not paused: the set node of its first choice
  };

  // scheduler_plan.cc: the parts of Plan.
  void Admit();
  bool HasInteractiveWork() const;
  Sequence* NextInLine(int64_t longest) const;
  Sequence* PlaceFor(const Sequence& next) const;
  bool IsLong(const Sequence& sequence) const;
  Sequence* Victim(const Sequence& sequence) const;
  bool MakeRoom(const Sequence& sequence, const Prefix& matched);
  void Start(Sequence& sequence, const Prefix& matched);
  void FindLeader(Sequence& sequence, int64_t matched_tokens);
  void FollowLeaders();
  void LeaveQueue(Group& group);
  // scheduler_blocks.cc: the blocks of sequences.
  Prefix MatchPrefix(Sequence& sequence) const;
  bool TakeFromArchive(Sequence& sequence);
  bool Restore(const PrefixIndex::Lack& lack, std::vector<BlockId>& held);
  void Archive(const Sha256Digest& key, size_t table, BlockId block);
  void TakeCached(Sequence& sequence, const Prefix& matched);
  bool Reserve(Sequence& sequence, int64_t n_tokens);
  int64_t DraftThatFits(const Sequence& sequence) const;
  void Advance(Sequence& sequence, int64_t n_tokens);
  bool ReserveCopy(Sequence& sequence, BlockTable& table);
  std::optional<BlockId> TryAllocate();
  void Publish(Sequence& sequence, int64_t computed_before);
  void ReleaseUnseen(Sequence& sequence, int64_t computed_before);
  void ReleaseBlocks(Sequence& sequence);
  int64_t BlocksMissing(const Sequence& sequence, int64_t computed) const;
  int64_t BlocksPromised(WorkClass work_class) const;
  void CheckBlocks() const;
  // scheduler_states.cc: states of recurrent layers.
  bool ReserveState(Sequence& sequence);
  void PlanSaves();
  void PlanSave(Sequence& sequence, int64_t position, bool replaces);
  void DropSaves();
  void PublishSaves(const PlannedSlice& slice);
  void CheckStates() const;
  void CollectPrompts();
  int64_t PromptBudget() const;
  Want WantOfFollower(const Sequence& follower) const;
  int64_t Age(const Sequence& sequence) const;
  void ShareBudget();
  void ReserveInLineOrder();
  bool PreemptFor(Sequence& sequence);
  void Preempt(Sequence& victim);

  void Move(Sequence& sequence, SequencePhase phase);
  Line::node_type Leave(Sequence& sequence);  // removes it from its line; empty: it was in none
  void ReserveLeftQueue();
  void Fork(Sequence& first);
  Group& GroupOf(const Sequence& sequence);
  static int64_t NumBatch(const Line& line);
  TurnTaking& QueueOf(const Group& group);
  static bool AwaitsFork(const Group& group);

  const SchedulerOptions options_;
  BlockPool& pool_;
  PrefixIndex& index_;
  StatePool* const states_;
  PrefixArchive* const archive_;
  int64_t archive_left_ = 0;  // blocks that this plan may still take from the archive

  std::unordered_map<RequestId, Group> groups_;
  // By class: requests that have not had a place, except paused ones.
  std::array<TurnTaking, kWorkClasses> queues_;
  Line waiting_;  // sequences of admitted requests that wait for a (further) place
  Line running_;
  Line paused_;
  Line holders_;  // sequences with blocks, in any phase
  uint64_t arrivals_ = 0;
  uint64_t turns_ = 0;  // given
  int64_t queued_requests_ = 0;
  std::vector<uint64_t> left_queue_;  // has room for every queued request

  BatchPlan plan_;
  bool committed_ = true;
  bool is_planning_ = false;  // also after a Plan that threw
  struct Share {
    Sequence* sequence;
    int64_t n_tokens;
  };
  std::vector<Share> shares_;  // prompt chunks of the current plan, in line order
  std::vector<Want> wants_;    // scratch of ShareBudget
  int64_t plans_ = 0;
  int64_t steps_without_interactive_ = std::numeric_limits<int64_t>::max() / 2;
  Counters counters_;
};

}  // namespace tandem::engine
