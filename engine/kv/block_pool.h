#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::engine {

// Tokens per KV block. engine/ops states the same number as kKvBlockTokens, next to the block's
// layout; serving_ops.cc asserts that they agree (this room may not look up to ops).
inline constexpr int64_t kTokensPerBlock = 16;

// Counts references to KV blocks; never touches their bytes. Engine thread only. A block with
// references is in use; one without is free, possibly still holding cached keys and values that
// the prefix index knows (it is then reused last, in least-recently-released order).
class BlockPool {
 public:
  explicit BlockPool(int64_t capacity_blocks);

  // A block with one reference, or nothing when all are in use (an ordinary event). When the block
  // still held cached content, `evicted` is set so that the prefix index can forget it.
  struct Allocation {
    BlockId block;
    bool evicted_cached = false;
  };
  std::optional<Allocation> TryAllocate();
  void AddRef(BlockId block);  // also revives a free cached block
  // At zero references the block becomes free. Release a sequence's blocks last to first: cached
  // ones are then reused tail first, and a prefix that others may still match survives longest.
  void Release(BlockId block);
  // Whether a free block keeps its content for the prefix index (set when it is indexed).
  void SetCached(BlockId block, bool cached);

  int64_t capacity_blocks() const;
  int64_t num_free() const;  // free ones, cached or not
  int32_t references(BlockId block) const;
  bool is_cached(BlockId block) const;

 private:
  struct Entry {
    int32_t references = 0;
    bool cached = false;
    int32_t previous = -1;  // free list links
    int32_t next = -1;
  };
  Entry& At(BlockId block);
  const Entry& At(BlockId block) const;
  void PushFree(int32_t index);  // to the end that its `cached` asks for
  void Unlink(int32_t index);

  std::vector<Entry> entries_;
  int32_t free_head_ = -1;  // allocation takes from here; cached blocks are all at the tail
  int32_t free_tail_ = -1;
  int64_t num_free_ = 0;
};

}  // namespace tandem::engine
