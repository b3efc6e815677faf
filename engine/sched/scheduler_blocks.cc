// Blocks of sequences: one table per window. A table without window keeps all blocks; one with a
// window keeps those that the next token sees (engine/kv/README.md, decision 7).

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/out_of_memory.h"
#include "engine/sched/scheduler.h"

namespace tandem::engine {
namespace {

// Blocks that a table still holds.
int64_t HeldBlocks(const BlockTable& table, const KvWindow& window, int64_t computed) {
  return static_cast<int64_t>(table.size()) - FirstVisibleBlock(window, computed);
}

}  // namespace

Scheduler::Prefix Scheduler::MatchPrefix(Sequence& sequence) const {
  Prefix prefix;
  std::vector<Sha256Digest>& keys = prefix.keys;
  keys = index_.Keys(sequence.tokens, sequence.prefix_variant, sequence.block_keys);
  keys.resize(static_cast<size_t>(index_.Longest(keys)));
  if (states_ != nullptr) {
    const int64_t n_matched = prefix.n_blocks();
    while (!keys.empty() && !(prefix.state = states_->Find(keys.back()))) {
      keys.pop_back();
      keys.resize(static_cast<size_t>(index_.Longest(keys)));
    }
    if (prefix.n_blocks() < n_matched) prefix.branch = n_matched * kTokensPerBlock;
  }
  prefix.tables = index_.Blocks(keys);
  return prefix;
}

// Brings the blocks of the sequence's prefix into the cache that only the archive has. False: this
// plan has taken enough, and the next ones bring the rest.
bool Scheduler::TakeFromArchive(Sequence& sequence) {
  if (archive_ == nullptr || !sequence.uses_prefix_cache || sequence.has_blocks()) return true;
  PrefixIndex::Needs needs = index_.NeedsOf(
      sequence.tokens, sequence.prefix_variant,
      [&](const Sha256Digest& key, size_t table) { return archive_->Has(key, table); },
      sequence.block_keys);
  if (needs.lacks.empty()) return true;
  // None of the prefix's blocks may make room for another one. Otherwise every plan could take one
  // and lose one, without end.
  std::vector<BlockId>& held = needs.present;
  held.reserve(held.size() + needs.lacks.size());
  for (const BlockId block : held) pool_.AddRef(block);
  bool is_whole = true;
  for (const PrefixIndex::Lack& lack : needs.lacks) {
    is_whole = archive_left_ > 0;
    if (!is_whole || !Restore(lack, held)) break;
    --archive_left_;
  }
  for (size_t i = held.size(); i-- > 0;) pool_.Release(held[i]);
  return is_whole;
}

// Adds the block to `held`, with a reference. False: no block is free, or the archive's is not
// usable. REQUIRES: room in `held`.
bool Scheduler::Restore(const PrefixIndex::Lack& lack, std::vector<BlockId>& held) {
  // Running sequences keep the blocks that they still need.
  const auto n_tables = static_cast<int64_t>(options_.windows.size());
  if (pool_.num_free() <= BlocksPromised(WorkClass::kBatch) + n_tables * num_running()) {
    return false;
  }
  const std::optional<BlockId> block = TryAllocate();
  if (!block) return false;
  bool is_loaded = false;
  HasMemoryFor([&] { is_loaded = archive_->Load(lack.key, lack.table, *block); });
  if (!is_loaded || !index_.Insert(lack.key, lack.table, *block)) {
    pool_.Release(*block);
    return false;
  }
  pool_.SetCached(*block, true);
  held.push_back(*block);
  ++counters_.archive_blocks;
  return true;
}

// Without memory the archive does without the block.
void Scheduler::Archive(const Sha256Digest& key, size_t table, BlockId block) {
  if (archive_ == nullptr) return;
  HasMemoryFor([&] { archive_->Save(key, table, block); });
}

// REQUIRES: the sequence holds no blocks. Changes nothing when memory runs out.
void Scheduler::TakeCached(Sequence& sequence, const Prefix& prefix) {
  // A request that does not look prefixes up begins with empty tables.
  std::vector<BlockTable> tables = prefix.tables;
  tables.resize(options_.windows.size());
  sequence.snapshot_at.reserve(sequence.snapshot_at.size() + 1);
  if (prefix.n_blocks() > 0) holders_.insert(&sequence);
  sequence.tables.swap(tables);
  std::vector<Sha256Digest>().swap(sequence.block_keys);
  for (const BlockTable& table : sequence.tables) {
    for (const BlockId block : table) {
      if (block != kNoBlock) pool_.AddRef(block);
    }
  }
  if (prefix.n_blocks() > 0) sequence.published = {prefix.keys.back(), prefix.n_blocks()};
  if (prefix.state) states_->AddRef(*prefix.state);
  sequence.state = prefix.state;
  if (prefix.branch > 0) sequence.snapshot_at.push_back(prefix.branch);
  sequence.computed_len = prefix.n_blocks() * kTokensPerBlock;
  TANDEM_CHECK(sequence.computed_len < sequence.length());
  sequence.is_long = IsLong(sequence);
  if (sequence.uses_prefix_cache && !sequence.looked_up) {
    sequence.looked_up = true;
    sequence.cached_len = sequence.computed_len;
    counters_.prefix_query_tokens += sequence.length();
    counters_.prefix_hit_tokens += sequence.computed_len;
  }
}

// Gives the sequence exclusive blocks for its next `n_tokens` positions. Returns false when it was
// the last in line and was preempted.
bool Scheduler::Reserve(Sequence& sequence, int64_t n_tokens) {
  const auto n_blocks = static_cast<size_t>(BlocksFor(sequence.computed_len + n_tokens));
  for (BlockTable& table : sequence.tables) {
    if (!ReserveCopy(sequence, table)) return false;
    while (table.size() < n_blocks) {
      table.reserve(n_blocks);  // so that push_back does not throw
      const bool is_first = !sequence.has_blocks();
      if (is_first) holders_.insert(&sequence);
      if (const std::optional<BlockId> block = TryAllocate()) {
        table.push_back(*block);
        continue;
      }
      if (is_first) holders_.erase(&sequence);
      if (!PreemptFor(sequence)) return false;
    }
  }
  return ReserveState(sequence);
}

// Replaces the block that the sequence writes next by a copy while others hold it.
bool Scheduler::ReserveCopy(Sequence& sequence, BlockTable& table) {
  const auto write_block = static_cast<size_t>(sequence.computed_len / kTokensPerBlock);
  while (write_block < table.size() && pool_.references(table[write_block]) > 1) {
    plan_.copies.emplace_back();  // before taking a block, which a failure must not lose
    if (const std::optional<BlockId> copy = TryAllocate()) {
      const BlockId shared = table[write_block];
      plan_.copies.back() = {shared, *copy};
      pool_.Release(shared);
      table[write_block] = *copy;
      continue;
    }
    plan_.copies.pop_back();
    if (!PreemptFor(sequence)) return false;
  }
  return true;
}

std::optional<BlockId> Scheduler::TryAllocate() {
  const std::optional<BlockPool::Allocation> allocation = pool_.TryAllocate();
  if (!allocation) return std::nullopt;
  if (allocation->evicted_cached) {
    const std::optional<PrefixIndex::Lack> name = index_.NameOf(allocation->block);
    if (name) Archive(name->key, name->table, allocation->block);
    index_.Forget(allocation->block);
  }
  return allocation->block;
}

// Adds newly filled blocks to the prefix index.
void Scheduler::Publish(Sequence& sequence, int64_t computed_before) {
  if (!options_.prefix_cache) return;
  const int64_t full = sequence.computed_len / kTokensPerBlock;
  for (int64_t i = computed_before / kTokensPerBlock; i < full; ++i) {
    index_.Advance(sequence.tokens, sequence.prefix_variant, i + 1, sequence.published);
    for (size_t table = 0; table < sequence.tables.size(); ++table) {
      const BlockId block = sequence.tables[table][static_cast<size_t>(i)];
      if (!index_.Insert(sequence.published.key, table, block)) continue;
      pool_.SetCached(block, true);
      Archive(sequence.published.key, table, block);
    }
  }
}

// Releases the blocks that no token from computed_len on sees. The prefix index keeps their content
// until the pool reuses them.
void Scheduler::ReleaseUnseen(Sequence& sequence, int64_t computed_before) {
  for (size_t table = 0; table < sequence.tables.size(); ++table) {
    const KvWindow& window = options_.windows[table];
    const int64_t end = FirstVisibleBlock(window, sequence.computed_len);
    for (int64_t i = FirstVisibleBlock(window, computed_before); i < end; ++i) {
      pool_.Release(std::exchange(sequence.tables[table][static_cast<size_t>(i)], kNoBlock));
    }
  }
}

// Releases the tail first: other requests most likely match blocks near the beginning of a text.
void Scheduler::ReleaseBlocks(Sequence& sequence) {
  if (!sequence.has_blocks()) return;
  holders_.erase(&sequence);
  for (size_t i = sequence.blocks().size(); i-- > 0;) {
    for (const BlockTable& table : sequence.tables) {
      // A failed plan may leave tables of different lengths; the first is the longest.
      if (i < table.size() && table[i] != kNoBlock) pool_.Release(table[i]);
    }
  }
  for (BlockTable& table : sequence.tables) table.clear();
  if (sequence.state) states_->Release(*sequence.state);
  sequence.state.reset();
  sequence.computed_len = 0;
}

// Blocks that the sequence still takes before all its present tokens are computed, if it goes on
// after `computed` of them.
int64_t Scheduler::BlocksMissing(const Sequence& sequence, int64_t computed) const {
  const auto write_block = static_cast<size_t>(computed / kTokensPerBlock);
  int64_t missing = 0;
  for (size_t i = 0; i < sequence.tables.size(); ++i) {
    const BlockTable& table = sequence.tables[i];
    const KvWindow& window = options_.windows[i];
    const int64_t held = table.empty() ? 0 : HeldBlocks(table, window, computed);
    const int64_t most =
        MostBlocks(window, computed, sequence.length(), options_.prefill_chunk_tokens);
    const bool copies = write_block < table.size() && pool_.references(table[write_block]) > 1;
    missing += std::max<int64_t>(0, most - held) + (copies ? 1 : 0);
  }
  return missing;
}

// Blocks that running sequences still need, except those that would give way to `work_class`.
int64_t Scheduler::BlocksPromised(WorkClass work_class) const {
  int64_t promised = 0;
  for (const Sequence* sequence : running_) {
    if (sequence->work_class > work_class) break;
    promised += BlocksMissing(*sequence, sequence->computed_len);
  }
  return promised;
}

void Scheduler::CheckBlocks() const {
  std::unordered_map<BlockId, int32_t> held;
  for (const auto& [id, group] : groups_) {
    for (const auto& sequence : group.choices) {
      for (size_t i = 0; i < sequence->tables.size(); ++i) {
        const BlockTable& table = sequence->tables[i];
        TANDEM_CHECK(BlocksFor(sequence->computed_len) <= static_cast<int64_t>(table.size()));
        const int64_t first = FirstVisibleBlock(options_.windows[i], sequence->computed_len);
        for (int64_t b = 0; b < static_cast<int64_t>(table.size()); ++b) {
          const BlockId block = table[static_cast<size_t>(b)];
          TANDEM_CHECK((block == kNoBlock) == (b < first));
          if (block != kNoBlock) ++held[block];
        }
      }
    }
  }
  for (int64_t i = 0; i < pool_.capacity_blocks(); ++i) {
    const BlockId block{static_cast<uint32_t>(i)};
    const auto found = held.find(block);
    TANDEM_CHECK(pool_.references(block) == (found == held.end() ? 0 : found->second));
  }
  TANDEM_CHECK(pool_.num_free() == pool_.capacity_blocks() - static_cast<int64_t>(held.size()));
}

}  // namespace tandem::engine
