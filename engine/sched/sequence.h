#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/work_class.h"
#include "engine/base/ids.h"
#include "engine/kv/block_table.h"
#include "engine/kv/prefix_index.h"
#include "engine/kv/state_cache.h"

namespace tandem::engine {

enum class SequencePhase : uint8_t {
  kAwaitingFork,  // a further choice: begins when the shared prompt is computed
  kWaiting,       // wants a place in the batch; may already hold blocks (forked, resumed)
  kRunning,       // has a place
  kPaused,        // slow reader: no place; keeps its blocks until another sequence needs them
  kFinished,
};

// The turn of a sequence whose request has not had a place yet.
inline constexpr uint64_t kNoTurn = ~uint64_t{0};

// The scheduler's state of one choice of one request. The scheduler owns it; the batch builder
// reads `tokens`, `computed_len` and `tables`.
struct Sequence {
  RequestId request;
  int choice = 0;
  WorkClass work_class = WorkClass::kInteractive;
  uint64_t turn = kNoTurn;  // order of first places; preemption keeps it
  uint64_t arrival = 0;     // order of Add

  std::vector<TokenId> tokens;  // the prompt, then the generated tokens
  int64_t prompt_len = 0;
  int64_t computed_len = 0;  // tokens[0, computed_len) have their keys and values in `tables`
  // By window (SchedulerOptions::windows): where keys and values are. Blocks before the window of
  // the token at computed_len are kNoBlock.
  std::vector<BlockTable> tables = std::vector<BlockTable>(1);
  // Models with state: the slot of the state after computed_len tokens. Only with blocks.
  std::optional<StateId> state = {};
  std::vector<int64_t> snapshot_at = {};         // further borders that want a snapshot
  std::vector<Sha256Digest> block_keys = {};     // of its first blocks, while it looks for them
  PrefixKey prefix_key = {};                     // of the last snapshot it asked for
  PrefixKey published = {};                      // of the last block in the prefix index
  std::optional<Sha256Digest> last_border = {};  // snapshot that the next border replaces
  int64_t cached_len = 0;                        // prompt tokens that came from the prefix cache

  SequencePhase phase = SequencePhase::kWaiting;
  int64_t placed_at = 0;  // number of the plan that gave it its present place
  bool is_long = false;   // it got its place with more than one chunk to compute
  bool uses_prefix_cache = true;
  std::string prefix_variant;  // names adapter and tenant; prefixes are shared within one variant
  bool scores_prompt = false;  // every prompt row's logits are requested

  // While an older sequence computes a prefix that this one shares, this one waits for the blocks
  // instead of computing them again: until leader->computed_len >= shared_len.
  Sequence* leader = nullptr;
  int64_t shared_len = 0;
  // A guess of the tokens after `tokens` (Scheduler::Propose).
  std::vector<TokenId> draft = {};
  int64_t n_draft_computed = 0;  // first tokens of the draft that have keys and values
  int64_t n_draft_accepted = 0;  // first tokens of the draft that Append confirmed
  int64_t draft_tokens = 0;      // guesses that were computed, in all steps
  int64_t accepted_tokens = 0;   // of those, confirmed
  bool looked_up = false;        // cache statistics count a sequence once

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t uncomputed() const { return length() - computed_len; }
  bool has_blocks() const { return !tables.front().empty(); }
  const BlockTable& blocks() const { return tables.front(); }
  bool live() const { return phase != SequencePhase::kFinished; }
};

// Orders sequences by class, then the earlier turn, then the earlier arrival, then the lower
// choice.
struct GoesFirst {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->work_class != b->work_class) return a->work_class < b->work_class;
    if (a->turn != b->turn) return a->turn < b->turn;
    if (a->arrival != b->arrival) return a->arrival < b->arrival;
    return a->choice < b->choice;
  }
};

}  // namespace tandem::engine
