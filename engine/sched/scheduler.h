#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/ids.h"
#include "engine/kv/block_pool.h"
#include "engine/kv/prefix_index.h"
#include "engine/sched/batch_plan.h"
#include "engine/sched/sequence.h"
#include "engine/sched/turn_taking.h"

namespace tandem::engine {

struct SchedulerOptions {
  int64_t max_seqs = 64;               // sequences with a place in the batch
  int64_t prefill_chunk_tokens = 256;  // prompt tokens per step, all sequences together
  int64_t score_chunk_tokens = 64;     // of those, tokens of prompts whose every row is scored
  int64_t max_model_len = 0;           // one sequence of this length must fit the pool
  bool prefix_cache = true;
};

// Decides who computes what in the next step, and which KV blocks hold it. Pure logic: no threads,
// no tensors, no clock. Engine thread only.
//
// Continuous batching: every running sequence decodes one token per step, and prompt chunks share
// the step. Half of the prompt budget goes to the first in line, so that everyone's turn comes;
// the other half to whoever has least left, so that a short prompt gets its first token while a
// long one is being computed. When blocks run out, the last in line loses its own and is
// recomputed later: its generated tokens are then part of what is prefilled. The first in line
// therefore always advances, and nobody starves.
//
// Clients that wait take turns, and a client's own requests go by priority, then by arrival
// (TurnTaking). A client that sends a thousand requests delays another's single one by one request,
// whatever priority it names. A request that has a place keeps its position in line to its end.
//
// One step: Plan -> (the loop computes) -> Commit -> Append or Finish for each sampled choice.
class Scheduler {
 public:
  struct Request {
    RequestId id;
    std::vector<TokenId> prompt;  // not empty, shorter than max_model_len
    int n = 1;                    // choices
    int priority = 0;             // lower first, among requests of one client
    uint64_t client = 0;          // clients take turns
    bool scores_prompt = false;   // skips the prefix-cache look-up
    std::string adapter = {};     // names what else than tokens its keys and values depend on
    uint64_t tenant = 0;          // cached prefixes are shared within one tenant and adapter
  };

  // Borrows the pool and the index for its lifetime. Throws kFailedPrecondition when the pool
  // cannot hold one sequence of max_model_len tokens.
  Scheduler(const SchedulerOptions& options, BlockPool& pool, PrefixIndex& index);

  // Queues a request. Its sequences live until the last one is finished or the request cancelled.
  // Throws std::bad_alloc and then changes nothing.
  void Add(Request request);

  // Choices of a request, by number; empty when the request is unknown.
  std::span<const std::unique_ptr<Sequence>> Choices(RequestId request) const;

  // Plans the next step; the result is valid until the next call of anything but Commit, Append
  // and Finish. A plan without slices means that there is nothing to do now. After std::bad_alloc
  // every sequence is in a valid phase: plan again, or cancel requests.
  const BatchPlan& Plan();

  // The rows of the last plan have been computed: advances its sequences, publishes full blocks in
  // the prefix index, starts the further choices of requests whose prompt is now complete.
  void Commit();

  // A sampled token continues the sequence. Not for a token that ends it.
  void Append(Sequence& sequence, TokenId token);
  // The sequence is over; its blocks are released. The last one ends the request and all of its
  // Sequence references.
  void Finish(Sequence& sequence);
  // The request is over in whatever phase. False when it is unknown (already over). Never fails.
  bool Cancel(RequestId request);
  // A paused request yields its place until resumed. Idempotent; unknown requests are ignored.
  // Resuming throws std::bad_alloc and then changes nothing.
  void SetPaused(RequestId request, bool paused);

  // Forgets every cached prefix. REQUIRES: there are no requests.
  void ForgetPrefixes();

  bool idle() const { return running_.empty() && num_waiting() == 0; }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size() + queue_.size()); }
  // Requests that never had a place yet.
  int64_t num_queued_requests() const { return queued_requests_; }
  // Clients of requests that got a place, or ended without one, since the last call: one entry
  // each. Throws std::bad_alloc and then takes nothing.
  std::vector<uint64_t> TakeLeftQueue();
  size_t num_left_queue() const { return left_queue_.size(); }
  int64_t num_requests() const { return static_cast<int64_t>(groups_.size()); }

  struct Counters {
    int64_t preemptions = 0;
    int64_t prefix_query_tokens = 0;
    int64_t prefix_hit_tokens = 0;
  };
  const Counters& counters() const { return counters_; }

  // Every block's references equal what sequences hold, and every set agrees with the phases.
  // Throws kInternal. O(blocks): for tests and debug builds.
  void CheckInvariants() const;

 private:
  using Line = std::set<Sequence*, GoesFirst>;
  struct Group {
    std::vector<std::unique_ptr<Sequence>> choices;
    bool paused = false;
    bool queued = true;  // never had a place
    TurnTaking::Entry entry;
    Line::node_type place;  // while queued and not paused: what its first choice enters a line with
  };

  void Admit();
  Sequence* NextInLine() const;
  bool MakeRoom(const Sequence& sequence, std::span<const BlockId> matched);
  void Start(Sequence& sequence, std::span<const BlockId> matched);
  void FindLeader(Sequence& sequence, int64_t matched_tokens);
  void FollowLeaders();
  void LeaveQueue(Group& group);
  void TakeCached(Sequence& sequence, std::span<const BlockId> matched);
  void ShareBudget();
  void ReserveInLineOrder();
  bool Reserve(Sequence& sequence, int64_t n_tokens);
  bool PreemptFor(Sequence& sequence);
  void Preempt(Sequence& victim);
  void Move(Sequence& sequence, SequencePhase phase);
  Line::node_type Leave(Sequence& sequence);  // takes it out of its line; empty: it is in none
  void ReserveLeftQueue();
  void ReleaseBlocks(Sequence& sequence);
  std::optional<BlockId> TryAllocate();
  int64_t BlocksMissing(const Sequence& sequence) const;
  int64_t BlocksPromised() const;
  void Publish(Sequence& sequence, int64_t computed_before);
  void Fork(Sequence& first);
  Group& GroupOf(const Sequence& sequence);
  static bool AwaitsFork(const Group& group);

  const SchedulerOptions options_;
  BlockPool& pool_;
  PrefixIndex& index_;

  std::unordered_map<RequestId, Group> groups_;
  TurnTaking queue_;  // requests that never had a place, without the paused ones
  Line waiting_;      // sequences that wait for another place, or for one beside their request's
  Line running_;
  Line paused_;
  Line holders_;  // whoever holds blocks, in whatever phase
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
  std::vector<Share> shares_;            // prompt chunks of the plan being made, in line order
  std::vector<Sequence*> by_remaining_;  // scratch of ShareBudget
  Counters counters_;
};

}  // namespace tandem::engine
