#include "engine/kv/block_pool.h"

#include <algorithm>
#include <limits>
#include <string>

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

// The blocks of a page, for the smallest ones.
constexpr int64_t kMostNeighbours = 64;

}  // namespace

BlockPool::BlockPool(int64_t capacity_blocks) {
  if (capacity_blocks < 0 || capacity_blocks > std::numeric_limits<int32_t>::max()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the number of blocks of a block pool must be in [0, 2147483647], got " +
                    std::to_string(capacity_blocks));
  }
  entries_.resize(static_cast<size_t>(capacity_blocks));
  // Pushed to the front one by one, so the first allocation is block 0.
  for (auto index = static_cast<int32_t>(capacity_blocks) - 1; index >= 0; --index) PushFree(index);
}

std::optional<BlockPool::Allocation> BlockPool::TryAllocate() {
  if (free_head_ < 0) return std::nullopt;
  const int32_t index = free_head_;
  Unlink(index);
  Entry& entry = entries_[static_cast<size_t>(index)];
  const Allocation allocation{BlockId{static_cast<uint32_t>(index)}, entry.cached};
  entry.cached = false;
  entry.taken = true;
  entry.references = 1;
  return allocation;
}

void BlockPool::AddRef(BlockId block) {
  Entry& entry = At(block);
  if (entry.references == 0) {
    // Only a free block with cached content is worth reviving.
    TANDEM_CHECK(entry.cached);
    Unlink(static_cast<int32_t>(block.value));
  }
  ++entry.references;
}

void BlockPool::Release(BlockId block) {
  Entry& entry = At(block);
  TANDEM_CHECK(entry.references > 0);
  if (--entry.references > 0) return;
  entry.released_age = age_;
  PushFree(static_cast<int32_t>(block.value));
}

void BlockPool::SetCached(BlockId block, bool cached) {
  Entry& entry = At(block);
  if (entry.cached == cached) return;
  if (entry.references > 0) {
    entry.cached = cached;
    return;
  }
  Unlink(static_cast<int32_t>(block.value));
  entry.cached = cached;
  PushFree(static_cast<int32_t>(block.value));
}

std::vector<BlockId> BlockPool::Idle(int64_t ages, int64_t most) const {
  std::vector<BlockId> idle;
  for (size_t i = 0; i < entries_.size() && static_cast<int64_t>(idle.size()) < most; ++i) {
    const Entry& entry = entries_[i];
    if (entry.references > 0 || !entry.taken || age_ - entry.released_age < ages) continue;
    idle.push_back(BlockId{static_cast<uint32_t>(i)});
  }
  return idle;
}

void BlockPool::GiveBack(BlockId block) {
  TANDEM_CHECK(At(block).references == 0);
  SetCached(block, false);
  At(block).taken = false;
}

std::vector<BlockPool::Range> BlockPool::RangesAround(const std::vector<BlockId>& blocks) const {
  const auto has_no_memory = [&](int64_t i) { return !entries_[static_cast<size_t>(i)].taken; };
  std::vector<Range> ranges;
  int64_t end = 0;  // of the last range
  for (const BlockId block : blocks) {
    auto first = static_cast<int64_t>(block.value);
    if (first < end) continue;
    const int64_t least = std::max(end, first - kMostNeighbours);
    while (first > least && has_no_memory(first - 1)) --first;
    end = static_cast<int64_t>(block.value) + 1;
    const int64_t most = std::min(capacity_blocks(), end + kMostNeighbours);
    while (end < most && has_no_memory(end)) ++end;
    ranges.push_back({first, end - first});
  }
  return ranges;
}

int64_t BlockPool::capacity_blocks() const { return static_cast<int64_t>(entries_.size()); }
int64_t BlockPool::num_free() const { return num_free_; }
int32_t BlockPool::references(BlockId block) const { return At(block).references; }
bool BlockPool::is_cached(BlockId block) const { return At(block).cached; }

BlockPool::Entry& BlockPool::At(BlockId block) {
  TANDEM_CHECK(block.value < entries_.size());
  return entries_[block.value];
}

const BlockPool::Entry& BlockPool::At(BlockId block) const {
  TANDEM_CHECK(block.value < entries_.size());
  return entries_[block.value];
}

void BlockPool::PushFree(int32_t index) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  // Uncached blocks go to the front: reusing them loses nothing, and the last one released is the
  // likeliest to be in a CPU cache. Cached ones queue at the back in order of release.
  if (entry.cached) {
    entry.previous = free_tail_;
    entry.next = -1;
    (free_tail_ >= 0 ? entries_[static_cast<size_t>(free_tail_)].next : free_head_) = index;
    free_tail_ = index;
  } else {
    entry.previous = -1;
    entry.next = free_head_;
    (free_head_ >= 0 ? entries_[static_cast<size_t>(free_head_)].previous : free_tail_) = index;
    free_head_ = index;
  }
  ++num_free_;
}

void BlockPool::Unlink(int32_t index) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  (entry.previous >= 0 ? entries_[static_cast<size_t>(entry.previous)].next : free_head_) =
      entry.next;
  (entry.next >= 0 ? entries_[static_cast<size_t>(entry.next)].previous : free_tail_) =
      entry.previous;
  entry.previous = -1;
  entry.next = -1;
  --num_free_;
}

}  // namespace tandem::engine
