// States of recurrent layers: which slot a sequence writes, and which borders get a snapshot
// (engine/kv/README.md, decision 6).

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/out_of_memory.h"
#include "engine/sched/scheduler.h"

namespace tandem::engine {

// Gives the sequence a state that it alone may write. Returns false when it was the last in line
// and was preempted. REQUIRES: it holds blocks.
bool Scheduler::ReserveState(Sequence& sequence) {
  if (states_ == nullptr) return true;
  for (;;) {
    if (sequence.state && states_->MayWrite(*sequence.state)) return true;
    plan_.state_copies.emplace_back();  // before taking a slot, which a failure must not lose
    const std::optional<StateId> fresh = states_->TryAllocate();
    if (!fresh) {
      plan_.state_copies.pop_back();
      // Without a free slot, the only holder of a snapshot takes it over.
      if (sequence.state && states_->references(*sequence.state) == 1) {
        states_->Forget(*sequence.state);
        return true;
      }
      if (!PreemptFor(sequence)) return false;
      continue;
    }
    if (sequence.state) {
      plan_.state_copies.back() = {*sequence.state, *fresh};
      states_->Release(*sequence.state);
    } else {
      plan_.state_copies.pop_back();  // position 0 begins with zeros
    }
    sequence.state = *fresh;
    return true;
  }
}

// Snapshots take free slots and older snapshots only, after all sequences have theirs.
void Scheduler::PlanSaves() {
  if (states_ == nullptr || !options_.prefix_cache) return;
  for (PlannedSlice& slice : plan_.slices) {
    Sequence& sequence = *slice.sequence;
    const int64_t end = slice.first_position + slice.n_tokens;
    const int64_t last = (sequence.length() - 1) / kTokensPerBlock * kTokensPerBlock;
    slice.first_save = plan_.saves.size();
    // Without memory the step has fewer snapshots.
    HasMemoryFor([&] {
      for (int64_t p = (slice.first_position / kTokensPerBlock + 1) * kTokensPerBlock; p <= end;
           p += kTokensPerBlock) {
        const auto& wanted = sequence.snapshot_at;
        const bool is_regular = p % options_.snapshot_tokens == 0 || p == last ||
                                std::find(wanted.begin(), wanted.end(), p) != wanted.end();
        if (is_regular || slice.decodes()) PlanSave(sequence, p, !is_regular);
      }
    });
    slice.n_saves = plan_.saves.size() - slice.first_save;
    std::erase_if(sequence.snapshot_at, [&](int64_t p) { return p <= end; });
  }
}

void Scheduler::PlanSave(Sequence& sequence, int64_t position, bool replaces) {
  index_.Advance(sequence.tokens, sequence.prefix_variant, position / kTokensPerBlock,
                 sequence.prefix_key);
  if (states_->Find(sequence.prefix_key.key)) return;
  PlannedSave save{.position = position, .key = sequence.prefix_key.key, .replaces = replaces};
  plan_.saves.reserve(plan_.saves.size() + 1);  // before taking a slot
  const std::optional<StateId> slot = states_->TryAllocate();
  if (!slot) return;
  save.state = *slot;
  plan_.saves.push_back(save);
}

// Returns the slots of a plan whose step failed.
void Scheduler::DropSaves() {
  for (const PlannedSave& save : plan_.saves) states_->Release(save.state);
  plan_.saves.clear();
}

void Scheduler::PublishSaves(const PlannedSlice& slice) {
  for (size_t i = slice.first_save; i < slice.first_save + slice.n_saves; ++i) {
    const PlannedSave& save = plan_.saves[i];
    states_->Publish(save.key, save.state);
    states_->Release(save.state);
    ++counters_.snapshots;
    if (!save.replaces) continue;
    Sequence& sequence = *slice.sequence;
    const auto previous = std::exchange(sequence.last_border, save.key);
    const auto old = previous ? states_->Find(*previous) : std::nullopt;
    if (old && states_->references(*old) == 0) states_->Forget(*old);
  }
}

void Scheduler::CheckStates() const {
  if (states_ == nullptr) return;
  std::unordered_map<StateId, int32_t> held;
  for (const auto& [id, group] : groups_) {
    for (const auto& sequence : group.choices) {
      TANDEM_CHECK(!sequence->state || sequence->has_blocks());
      TANDEM_CHECK(sequence->state || sequence->computed_len == 0);
      if (sequence->state) ++held[*sequence->state];
    }
  }
  for (const PlannedSave& save : plan_.saves) ++held[save.state];
  for (const auto& [id, n] : held) TANDEM_CHECK(states_->references(id) == n);
  TANDEM_CHECK(states_->num_held() == static_cast<int64_t>(held.size()));
}

}  // namespace tandem::engine
